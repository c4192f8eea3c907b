"""One launch, with one program per piece."""

import torch
import triton
import triton.language as tl

from pillion.kernels.write_tables import MAX_PIECE_WORDS, PIECE_FIELDS


@triton.jit(do_not_specialize=["num_pieces"])
def _write_tables_kernel(
    places_ptr, staged_ptr, num_pieces, FIELDS: tl.constexpr, LANES: tl.constexpr
):
    piece_ptr = staged_ptr + tl.program_id(0) * FIELDS
    row = tl.load(piece_ptr).to(tl.int64)
    place_ptr = places_ptr + tl.load(piece_ptr + 1) * 3
    first = tl.load(piece_ptr + 2)
    at = tl.load(piece_ptr + 3)
    length = tl.load(piece_ptr + 4)
    address, stride, word_bytes = tl.load(place_ptr), tl.load(place_ptr + 1), tl.load(place_ptr + 2)
    word = row * stride + first
    lane = tl.arange(0, LANES)
    mask = lane < length
    values = tl.load(staged_ptr + num_pieces * FIELDS + at + lane, mask=mask)
    if word_bytes == 1:
        flags_ptr = address.to(tl.pointer_type(tl.int8))
        tl.store(flags_ptr + word + lane, values.to(tl.int8), mask=mask)
    else:
        words_ptr = address.to(tl.pointer_type(tl.int32))
        tl.store(words_ptr + word + lane, values, mask=mask)


def write_tables(places: torch.Tensor, staged: torch.Tensor, num_pieces: int) -> None:
    """See `pillion.kernels.write_tables.write_tables`; `places` are `Tables.places`."""
    if num_pieces:
        _write_tables_kernel[(num_pieces,)](
            places, staged, num_pieces, FIELDS=PIECE_FIELDS, LANES=MAX_PIECE_WORDS
        )
