"""Dequantization of GGUF tensors, vectorised, written from the block layouts of ggml.

Every quantized type is the same formula with different packing: a row is cut into groups, and a number is
`code * scale[group] + offset[group]` with a small integer code. One unpacking function per type yields
codes, scales and offsets; the multiplication is shared.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from pillion.runtime.gguf_file import GgmlType, GgufFile, GgufTensor

# Numbers that are dequantized at a time: large enough for vector code, small enough for the caches.
_CHUNK_ELEMENTS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """Quantized numbers of n blocks, g groups of s numbers each."""

    # [n, g, s] uint8 or int8
    codes: torch.Tensor
    # [n, g] float32
    scales: torch.Tensor
    # [n, g] float32; None: zero
    offsets: torch.Tensor | None


def raw_tensor(file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
    """The stored bytes, [rows, bytes per row] uint8, without a copy. Not to be written to."""
    with warnings.catch_warnings():
        # torch warns that it cannot keep others from writing to a read-only map; nobody does.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(file.raw(tensor))


def dequantize(raw: torch.Tensor, storage: GgmlType, out: torch.Tensor) -> None:
    """Writes the numbers of a stored tensor.

    raw [rows, bytes per row] uint8, see `raw_tensor`. Writes: out [rows, numbers per row], any
    float type, any device.
    """
    num_rows, row_size = out.shape
    rows_at_a_time = max(1, _CHUNK_ELEMENTS // max(row_size, 1))
    for start in range(0, num_rows, rows_at_a_time):
        rows = slice(start, min(start + rows_at_a_time, num_rows))
        out[rows].copy_(_dequantize_rows(raw[rows], storage).view(-1, row_size))


def unpack(raw: torch.Tensor, storage: GgmlType) -> BlockCodes:
    """Codes, scales and offsets of stored rows; raises KeyError for a type that is not quantized."""
    return _UNPACK[storage.name](raw.reshape(-1, storage.block_bytes))


def _dequantize_rows(raw: torch.Tensor, storage: GgmlType) -> torch.Tensor:
    plain = _PLAIN.get(storage.name)
    if plain is not None:
        return raw.contiguous().view(plain)
    blocks = unpack(raw, storage)
    numbers = blocks.codes.to(torch.float32).mul_(blocks.scales.unsqueeze(-1))
    if blocks.offsets is not None:
        numbers.add_(blocks.offsets.unsqueeze(-1))
    return numbers


def _halves(raw: torch.Tensor) -> torch.Tensor:
    """[n, 2 * k] bytes as [n, k] float32, read as float16."""
    return raw.contiguous().view(torch.float16).float()


def _split(raw: torch.Tensor, *sizes: int) -> tuple[torch.Tensor, ...]:
    return raw.split_with_sizes(sizes, dim=1)


def _nibbles(raw: torch.Tensor) -> torch.Tensor:
    """[..., s] bytes as [..., 2, s]: first the low halves, then the high halves."""
    return _bits(raw, 4)


def _bits(raw: torch.Tensor, width: int) -> torch.Tensor:
    """[..., s] bytes as [..., 8 / width, s]: fields of `width` bits, lowest first; s is a multiple of 4."""
    # Four bytes at a time: what a shift moves from one byte into the next is masked out.
    # (A copy, as a single row counts as contiguous with any stride, and the view looks at strides.)
    words = raw.clone(memory_format=torch.contiguous_format).view(torch.int32)
    mask = ((1 << width) - 1) * 0x01010101
    fields = [(words >> shift) & mask for shift in range(0, 8, width)]
    return torch.stack(fields, dim=-2).view(torch.uint8)


def _q4_0(raw: torch.Tensor) -> BlockCodes:
    scale, packed = _split(raw, 2, 16)
    codes = _nibbles(packed).view(-1, 1, 32).view(torch.int8) - 8
    return BlockCodes(codes, _halves(scale), None)


def _q4_1(raw: torch.Tensor) -> BlockCodes:
    scale, offset, packed = _split(raw, 2, 2, 16)
    return BlockCodes(_nibbles(packed).view(-1, 1, 32), _halves(scale), _halves(offset))


def _five_bit_codes(high: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """[n, 1, 32]; bit i of the 32 in `high` [n, 4] is the fifth bit of number i."""
    fifth = _bits(high, 1).transpose(1, 2).reshape(-1, 32)
    return (_nibbles(packed).view(-1, 32) | (fifth << 4)).view(-1, 1, 32)


def _q5_0(raw: torch.Tensor) -> BlockCodes:
    scale, high, packed = _split(raw, 2, 4, 16)
    codes = _five_bit_codes(high, packed).view(torch.int8) - 16
    return BlockCodes(codes, _halves(scale), None)


def _q5_1(raw: torch.Tensor) -> BlockCodes:
    scale, offset, high, packed = _split(raw, 2, 2, 4, 16)
    return BlockCodes(_five_bit_codes(high, packed), _halves(scale), _halves(offset))


def _q8_0(raw: torch.Tensor) -> BlockCodes:
    scale, packed = _split(raw, 2, 32)
    return BlockCodes(packed.contiguous().view(torch.int8).unsqueeze(1), _halves(scale), None)


def _q2_k(raw: torch.Tensor) -> BlockCodes:
    """16 groups of 16; a byte holds a 4-bit scale and a 4-bit minimum of one group."""
    levels, packed, scale, minimum = _split(raw, 16, 64, 2, 2)
    # 32 bytes hold 128 numbers: the lowest two bits of all bytes, then the next two, ...
    codes = _bits(packed.reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    return BlockCodes(
        codes, _halves(scale) * (levels & 0x0F), _halves(minimum).neg() * (levels >> 4)
    )


def _q3_k(raw: torch.Tensor) -> BlockCodes:
    """16 groups of 16; two low bits in `packed`, the inverted third bit in `high`."""
    high, packed, levels, scale = _split(raw, 32, 64, 12, 2)
    low = _bits(packed.reshape(-1, 2, 32), 2).reshape(-1, 256)
    third = _bits(high, 1).reshape(-1, 256)
    codes = (low | (third << 2)).view(torch.int8) - 4
    # Sixteen 6-bit scales: four low bits each in the first 8 bytes, two high bits in the last 4.
    levels = _nibbles(levels[:, :8]).reshape(-1, 16) | (
        _bits(levels[:, 8:], 2).reshape(-1, 16) << 4
    )
    return BlockCodes(codes.view(-1, 16, 16), _halves(scale) * (levels.view(torch.int8) - 32), None)


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight 6-bit scales and eight 6-bit minima, each [n, 8], from 12 bytes [n, 12].

    Bytes 0 .. 3 hold scales 0 .. 3 in their low six bits, bytes 4 .. 7 minima 0 .. 3. Of scales and minima
    4 .. 7, bytes 8 .. 11 hold the low four bits and the top two bits of the former bytes the high two.
    """
    first, second, third = _split(packed, 4, 4, 4)
    scales = torch.cat((first & 0x3F, (third & 0x0F) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 0x3F, (third >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, minima


def _q4_k(raw: torch.Tensor) -> BlockCodes:
    """8 groups of 32."""
    scale, minimum, levels, packed = _split(raw, 2, 2, 12, 128)
    scales, minima = _six_bit_pairs(levels)
    codes = _nibbles(packed.reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return BlockCodes(codes, _halves(scale) * scales, _halves(minimum).neg() * minima)


def _q5_k(raw: torch.Tensor) -> BlockCodes:
    """8 groups of 32; bit g of byte i in `high` is the fifth bit of number i of group g."""
    scale, minimum, levels, high, packed = _split(raw, 2, 2, 12, 32, 128)
    scales, minima = _six_bit_pairs(levels)
    low = _nibbles(packed.reshape(-1, 4, 32)).reshape(-1, 8, 32)
    codes = low | (_bits(high, 1) << 4)
    return BlockCodes(codes, _halves(scale) * scales, _halves(minimum).neg() * minima)


def _q6_k(raw: torch.Tensor) -> BlockCodes:
    """16 groups of 16 with 8-bit scales; four low bits in `packed`, two high bits in `high`."""
    packed, high, levels, scale = _split(raw, 128, 64, 16, 2)
    low = _nibbles(packed.reshape(-1, 2, 64)).reshape(-1, 256)
    top = _bits(high.reshape(-1, 2, 32), 2).reshape(-1, 256)
    codes = (low | (top << 4)).view(torch.int8) - 32
    scales = _halves(scale) * levels.contiguous().view(torch.int8)
    return BlockCodes(codes.view(-1, 16, 16), scales, None)


_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNPACK: Final[dict[str, Callable[[torch.Tensor], BlockCodes]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
