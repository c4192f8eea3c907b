"""`pillion serve`: starts a daemon, in the foreground or behind."""

import argparse
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from pillion.runtime.config import EngineConfig, make_config
from pillion.runtime.daemon import LaunchOptions, launch, locate_model, start_daemon
from pillion.runtime.errors import PillionError
from pillion.runtime.launch_report import LaunchRefused
from pillion.runtime.paths import refuse_if_running, run_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, how to start, and one flag for each field of the configuration."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="directory, .gguf file, hub id or alias (smollm2)"
    )
    parser.add_argument("--daemon", action="store_true", help="return as soon as it is ready")
    parser.add_argument(
        "--no-wait", action="store_true", help="with --daemon: return before it is ready"
    )
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="settings; flags override")
    group = parser.add_argument_group("settings")
    for field in msgspec.structs.fields(EngineConfig):
        kind, meta = get_args(field.type)
        if field.name != "model" and not (meta.extra or {}).get("internal"):
            _add_flag(group, field, kind, meta.description)


def run(arguments: argparse.Namespace) -> int:
    """Finds the model first, so that a wrong name or a failed download is told at once."""
    config = make_config(given_fields(arguments), arguments.config)
    refuse_if_running(run_dir(config.name))
    config = locate_model(config, progress=sys.stderr.isatty())
    if not arguments.daemon:
        return launch(config, LaunchOptions(foreground=True))
    daemon = start_daemon(config)
    option = "" if config.name == "default" else f" --name {config.name}"
    if not arguments.no_wait:
        try:
            daemon.wait_ready()
        except KeyboardInterrupt:
            daemon.stop()
            raise
        except LaunchRefused:
            raise
        except PillionError as error:
            raise PillionError(f"{error} (see pillion logs{option})") from error
    print(f"{config.served_model_name} is served by the daemon {config.name!r} (pid {daemon.pid})")
    print(f"try: pillion chat{option}")
    print(f"     pillion status{option}, pillion logs{option}, pillion stop{option}")
    return 0


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration's fields as given on the command line; None for those that were not."""
    names = (field.name for field in msgspec.structs.fields(EngineConfig))
    return {name: getattr(arguments, name, None) for name in names}


def _add_flag(group: Any, field: Any, kind: Any, help_text: str) -> None:
    """One flag. Its default is None, so that the file's setting stays unless the flag is given."""
    flag = "--" + field.name.replace("_", "-")
    if get_origin(kind) is UnionType:  # "int | None"
        kind = next(member for member in get_args(kind) if member is not type(None))
    if field.default is not None:
        help_text += f" (default: {field.default})"
    if kind is bool:
        group.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=None, help=help_text
        )
    elif get_origin(kind) is Literal:
        group.add_argument(flag, choices=get_args(kind), help=help_text)
    else:
        group.add_argument(flag, type=kind, metavar=kind.__name__.upper(), help=help_text)
