"""GGUF files: metadata and an index of the tensors, over a memory map, without copying either.

The format: a header (magic, version, counts), key-value pairs, tensor descriptions, then the tensors'
bytes, each aligned. Source: the GGUF specification in the ggml repository, docs/gguf.md.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt

from pillion.runtime.errors import ModelError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMENSIONS: Final = 4

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

_STRING_TYPE: Final = 8
_ARRAY_TYPE: Final = 9
_BOOL_TYPE: Final = 7
_NUMBER_TYPES: Final[dict[int, np.dtype[np.generic]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL_TYPE: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class GgmlType:
    """How a tensor's numbers are stored: `block_size` numbers in `block_bytes` bytes, rows in whole blocks."""

    name: str
    block_size: int
    block_bytes: int


# Type code -> storage, for every type that Pillion reads.
GGML_TYPES: Final[dict[int, GgmlType]] = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    30: GgmlType("BF16", 1, 2),
}


class GgufStrings(Sequence[str]):
    """A list of strings inside the file, decoded when it is read. Invalid UTF-8 becomes U+FFFD."""

    def __init__(self, data: mmap.mmap, starts: list[int]) -> None:
        self._data = data
        self._starts = starts  # offset of each string's length field

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._decode(start) for start in self._starts[index]]
        return self._decode(self._starts[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._decode, self._starts)

    def _decode(self, start: int) -> str:
        begin = start + _U64.size
        (length,) = _U64.unpack_from(self._data, start)
        return self._data[begin : begin + length].decode("utf-8", errors="replace")


Numbers: TypeAlias = npt.NDArray[np.generic]
Value: TypeAlias = str | int | float | bool | GgufStrings | Numbers


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies in its file."""

    name: str
    # Slowest dimension first, as in numpy and torch: [out, in] for a weight matrix.
    shape: tuple[int, ...]
    type: GgmlType
    offset: int  # bytes from the start of the file
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)


class GgufFile:
    """A GGUF file, mapped into memory.

    `metadata` maps keys to values: numbers and booleans as Python values, arrays of numbers as numpy
    views, arrays of strings as lazily decoded sequences. `tensors` maps names to places.

    Raises ModelError, naming the file and what is wrong, if the file is missing, not GGUF, cut off,
    inconsistent, one part of several, or uses a storage type that is not in GGML_TYPES.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # what mmap says of an empty file
            raise ModelError(f"{path} is empty") from error
        except OSError as error:
            raise ModelError(f"cannot open {path}: {error.strerror or error}") from error
        self.metadata: dict[str, Value]
        self.tensors: dict[str, GgufTensor]
        self.metadata, self.tensors = _Parser(path, self._map).parse()

    def raw(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor as a read-only view, [rows, bytes per row].

        A row is the fastest dimension; all other dimensions are folded into `rows`.
        """
        flat = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        rows = math.prod(tensor.shape[:-1])
        return flat.reshape(rows, tensor.num_bytes // max(rows, 1))

    def string(self, key: str) -> str | None:
        """A string of the metadata, None if there is no such key."""
        return cast("str | None", self._typed(key, (str,), "a string"))

    def integer(self, key: str) -> int | None:
        """An integer of the metadata, None if there is no such key."""
        return cast("int | None", self._typed(key, (int,), "an integer"))

    def number(self, key: str) -> float | None:
        """A number of the metadata, None if there is no such key."""
        value = self._typed(key, (int, float), "a number")
        return None if value is None else float(cast("float", value))

    def boolean(self, key: str) -> bool | None:
        """A boolean of the metadata, None if there is no such key."""
        return cast("bool | None", self._typed(key, (bool,), "true or false"))

    def strings(self, key: str) -> GgufStrings | None:
        """A list of strings of the metadata, None if there is no such key."""
        return cast("GgufStrings | None", self._typed(key, (GgufStrings,), "a list of strings"))

    def numbers(self, key: str) -> Numbers | None:
        """A list of numbers of the metadata as a numpy view, None if there is no such key."""
        return cast("Numbers | None", self._typed(key, (np.ndarray,), "a list of numbers"))

    def _typed(self, key: str, types: tuple[type, ...], wanted: str) -> Value | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ModelError(f"{self.path}: {key} must be {wanted}, not {type(value).__name__}")
        return value


class _Parser:
    """One pass over the front of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 0

    def parse(self) -> tuple[dict[str, Value], dict[str, GgufTensor]]:
        if self._data[:4] != _MAGIC:
            raise self._error(f"is not a GGUF file: it begins with {self._data[:4]!r}")
        self._position = 4
        version = self._u32()
        if version not in _VERSIONS:
            # A big-endian file shows its version in the upper bytes.
            hint = " (a big-endian file)" if version and not version & 0xFFFF else ""
            raise self._error(f"has GGUF version {version}{hint}; versions 2 and 3 are read")
        num_tensors, num_keys = self._u64(), self._u64()
        metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(key, self._u32())
        self._refuse_parts(metadata)
        described = [self._tensor() for _ in range(num_tensors)]
        return metadata, self._place(described, self._alignment(metadata))

    def _error(self, problem: str) -> ModelError:
        return ModelError(f"{self._path} {problem}")

    def _advance(self, num_bytes: int) -> int:
        """The position before skipping these bytes; raises if the file ends within them."""
        start = self._position
        if num_bytes > self._size - start:
            raise self._error(
                f"is cut off or corrupt: {num_bytes} bytes are due at byte {start} of {self._size}"
            )
        self._position = start + num_bytes
        return start

    def _u32(self) -> int:
        return int(_U32.unpack_from(self._data, self._advance(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self._data, self._advance(8))[0])

    def _string(self) -> str:
        length = self._u64()
        start = self._advance(length)
        return self._data[start : start + length].decode("utf-8", errors="replace")

    def _value(self, key: str, kind: int) -> Value:
        if kind == _STRING_TYPE:
            return self._string()
        if kind == _ARRAY_TYPE:
            element, count = self._u32(), self._u64()
            return (
                self._strings(count)
                if element == _STRING_TYPE
                else self._array(key, element, count)
            )
        return cast("int | float | bool", self._array(key, kind, 1)[0].item())

    def _array(self, key: str, kind: int, count: int) -> Numbers:
        dtype = _NUMBER_TYPES.get(kind)
        if dtype is None:
            raise self._error(f"is corrupt: {key!r} has the unknown value type {kind}")
        return np.frombuffer(self._data, dtype, count, self._advance(count * dtype.itemsize))

    def _strings(self, count: int) -> GgufStrings:
        starts: list[int] = []
        append, unpack, data, size = starts.append, _U64.unpack_from, self._data, self._size
        position = self._position
        # The one long loop of the reader (vocabulary and merges), so kept free of calls.
        for _ in range(count):
            if position + 8 > size:
                break
            append(position)
            position += 8 + unpack(data, position)[0]
        if len(starts) < count or position > size:
            raise self._error("is cut off or corrupt: it ends within a list of strings")
        self._position = position
        return GgufStrings(data, starts)

    def _alignment(self, metadata: dict[str, Value]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise self._error(f"is corrupt: general.alignment is {alignment!r}")
        return alignment

    def _refuse_parts(self, metadata: dict[str, Value]) -> None:
        num_parts = metadata.get("split.count", 1)
        if isinstance(num_parts, int) and num_parts > 1:
            raise self._error(
                f"is one of {num_parts} parts: join them first with `llama-gguf-split --merge`"
            )

    def _tensor(self) -> GgufTensor:
        name = self._string()
        num_dimensions = self._u32()
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"is corrupt: tensor {name!r} has {num_dimensions} dimensions")
        fastest_first = [self._u64() for _ in range(num_dimensions)]
        code, offset = self._u32(), self._u64()
        storage = GGML_TYPES.get(code)
        if storage is None:
            known = ", ".join(each.name for each in GGML_TYPES.values())
            raise self._error(
                f"stores tensor {name!r} as ggml type {code}, which Pillion does not read (it reads {known})"
            )
        if fastest_first[0] % storage.block_size:
            raise self._error(
                f"is corrupt: rows of {fastest_first[0]} numbers in tensor {name!r} are not whole"
                f" {storage.name} blocks of {storage.block_size}"
            )
        num_bytes = math.prod(fastest_first) // storage.block_size * storage.block_bytes
        return GgufTensor(name, tuple(reversed(fastest_first)), storage, offset, num_bytes)

    def _place(self, described: list[GgufTensor], alignment: int) -> dict[str, GgufTensor]:
        """Turns offsets within the data section into offsets within the file, and checks them."""
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for tensor in described:
            offset = data_start + tensor.offset
            if tensor.offset % alignment:
                raise self._error(
                    f"is corrupt: tensor {tensor.name!r} is not aligned to {alignment}"
                )
            if offset + tensor.num_bytes > self._size:
                raise self._error(
                    f"is cut off: tensor {tensor.name!r} ends at byte {offset + tensor.num_bytes}"
                    f" but the file has {self._size}"
                )
            if tensor.name in tensors:
                raise self._error(f"is corrupt: tensor {tensor.name!r} is described twice")
            tensors[tensor.name] = GgufTensor(
                tensor.name, tensor.shape, tensor.type, offset, tensor.num_bytes
            )
        return tensors
