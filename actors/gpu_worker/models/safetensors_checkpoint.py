"""A Hugging Face directory: config.json and one or more safetensors files, memory-mapped."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from pillion.actors.gpu_worker.models.hf_config import read_hf_config
from pillion.actors.gpu_worker.models.staged_copy import copy_weight
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight, StoredTensor
from pillion.runtime.errors import ModelError

_SINGLE_FILE: Final = "model.safetensors"
_INDEX_FILE: Final = "model.safetensors.index.json"
_DTYPES: Final = ("F32", "F16", "BF16")


class SafetensorsCheckpoint:
    """See `Checkpoint`. Raises ModelError for files that are missing, cut off or corrupt."""

    def __init__(self, directory: Path) -> None:
        self.config = read_hf_config(directory)
        self._directory = directory
        self._files: dict[Path, Any] = {}
        self._places: dict[str, Path] = {}
        for path in _weight_files(directory):
            file = _open(path)
            self._files[path] = file
            self._places.update(dict.fromkeys(file.keys(), path))

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `Checkpoint.tensor`."""
        path = self._places.get(name)
        if path is None:
            raise ModelError(
                f"{self._directory}: tensor {name} is in none of the safetensors files"
            )
        part = self._files[path].get_slice(name)
        found, dtype = tuple(part.get_shape()), part.get_dtype()
        if found != shape:
            raise ModelError(
                f"{path}: {name} has shape {list(found)}; config.json says {list(shape)}"
            )
        if dtype not in _DTYPES:
            raise ModelError(
                f"{path}: {name} is of type {dtype}; {', '.join(_DTYPES)} are supported"
            )
        return _SafetensorsTensor(self._files[path], name, found)


class _SafetensorsTensor:
    def __init__(self, file: Any, name: str, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._file = file
        self._name = name

    def copy_to(self, out: torch.Tensor) -> None:
        # The source is a view of the memory map: nothing but `out` is allocated.
        copy_weight(self._file.get_tensor(self._name), out)

    def four_bit(self) -> FourBitWeight | None:
        return None


def _weight_files(directory: Path) -> list[Path]:
    """The files that the index names, else the single file, else every safetensors file there is."""
    index = directory / _INDEX_FILE
    if index.is_file():
        names = _read_index(index)
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise ModelError(f"{directory}: {index.name} names files that are missing: {missing}")
        return [directory / name for name in names]
    single = directory / _SINGLE_FILE
    files = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{directory} holds no *.safetensors files (PyTorch .bin files are not read: they are pickles)"
        )
    return files


def _read_index(path: Path) -> list[str]:
    try:
        names = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a safetensors index: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{path} names {name!r}, which is no file beside it")
    return sorted(names)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is cut off or no safetensors file: {error}") from error
