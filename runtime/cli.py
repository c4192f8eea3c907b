"""The `pillion` command: a table of subcommands, each imported only when it is the one that runs."""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import pillion
from pillion.runtime.errors import PillionError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

# name -> (module with add_arguments(parser) and run(arguments) -> exit status, help)
COMMANDS: Final = {
    "serve": ("pillion.runtime.commands.serve", "start a daemon that serves a model"),
    "status": ("pillion.runtime.commands.status", "show how a daemon is doing"),
    "top": ("pillion.runtime.commands.top", "watch a daemon in the terminal"),
    "stop": ("pillion.runtime.commands.stop", "stop a daemon"),
    "logs": ("pillion.runtime.commands.logs", "show a daemon's log"),
    "generate": ("pillion.runtime.commands.generate", "complete a prompt"),
    "chat": ("pillion.runtime.commands.chat", "talk with the model"),
    "pull": ("pillion.runtime.commands.pull", "fetch a model before it is needed"),
    "bench": ("pillion.runtime.commands.bench", "measure what this machine does with a model"),
    "chaos": ("pillion.runtime.commands.chaos", "kill processes under load and check every answer"),
    "doctor": ("pillion.runtime.commands.doctor", "look for what could go wrong on this machine"),
}


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line: the usage of `serve` has so many that the mistake would be lost behind them."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status: 1 after an error, 2 after wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        return _without_command(arguments)
    module_name, help_text = COMMANDS[name]
    try:
        module: Any = importlib.import_module(module_name)
        parser = _Parser(prog=f"pillion {name}", description=_sentence(help_text))
        module.add_arguments(parser)
        status: int = module.run(parser.parse_args(arguments[1:]))
        sys.stdout.flush()
    except PillionError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return EXIT_FAILED
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            return _without_output()
        if not isinstance(error, PermissionError) or error.filename is None:
            raise
        print(f"error: this user may not open {error.filename}", file=sys.stderr)
        return EXIT_FAILED
    return status


def _without_output() -> int:
    """What was printed found no room; without this the interpreter would try it once more at its end."""
    print("error: cannot write the output: no space left", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED


def _without_command(arguments: list[str]) -> int:
    """`--help`, `--version`, and mistakes."""
    commands = "\n".join(f"  {name:10}{text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="pillion",
        usage="pillion COMMAND [options]",
        description="Serves large language models from the seat behind your application.",
        epilog=f"commands:\n{commands}\n\n`pillion COMMAND --help` says more about a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pillion {pillion.__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args(arguments)
    if known.command is None:
        parser.print_help()
        return 0 if not arguments else EXIT_USAGE
    print(
        f"error: there is no command {known.command!r}; there are {', '.join(COMMANDS)}",
        file=sys.stderr,
    )
    return EXIT_USAGE


def _sentence(help_text: str) -> str:
    return help_text[0].upper() + help_text[1:] + "."
