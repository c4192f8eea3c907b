"""What attention needs to know about the rows of a step; the same for all layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

# Padding to so many tokens is cheaper than another round of operations.
_SHORT: Final = 128
# A prompt of so many tokens is worth an attention of its own.
WHOLE_TOKENS: Final = 3072
# Of so many tokens it is cheaper to gather whole blocks and to silence what is beyond the rows' lengths.
_MANY_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True)
class DecodeGather:
    """Where the keys and values of decode rows of similar lengths lie, and which of them count.

    The torch reference wants to know it. A layer is an offset into the pool, so it holds for all layers.
    """

    # [num_rows] int64; which of the step's decode rows these are. None: all of them
    rows: torch.Tensor | None
    # tokens of one head that are gathered in one piece: 1, or those of a block
    tokens_per_piece: int
    # [2 * num_rows * num_kv_heads * length / tokens_per_piece] int64; pieces of the pool, counted from the
    # layer's start: all keys, row by row and head by head, then all values
    pieces: torch.Tensor
    # [n] int64; which of the gathered tokens lie beyond their row's KV length. None: there its first token
    # was gathered in their place
    beyond: torch.Tensor | None
    # [num_rows, 1, 1, length] in the products' type; 0, or very low beyond the row's KV length
    bias: torch.Tensor
    # [num_rows, 1] int32
    seq_lens: torch.Tensor


@dataclass(frozen=True, slots=True)
class WholePrompt:
    """A long prompt that a step computes from its first token."""

    row: int
    first_token: int  # in the step
    length: int


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """How the queries of prefill rows are cut into pieces, for the kernel on a CUDA device."""

    # [num_tiles] int32 each; row of a piece (-1: there is none) and its first query within the row
    rows: torch.Tensor
    starts: torch.Tensor
    # [num_rows] int32; KV length of each row with this step's tokens, 0 for rows that do not prefill
    seq_lens: torch.Tensor
    # queries of a piece
    num_queries: int
    # prompts that may be taken in one go instead, in steps that are not captured; their pieces are the last ones
    whole_prompts: tuple[WholePrompt, ...] = ()
    num_whole_tiles: int = 0

    def without_whole_prompts(self) -> "PrefillTiles":
        """The pieces of all other rows."""
        num_others = len(self.rows) - self.num_whole_tiles
        return replace(
            self,
            rows=self.rows[:num_others],
            starts=self.starts[:num_others],
            whole_prompts=(),
            num_whole_tiles=0,
        )


def cut_queries(
    query_lens: Sequence[int] | npt.NDArray[np.int64], first_row: int, num_queries: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Rows and first queries of the pieces of prefill rows, of which `first_row` is the first.

    The last queries of a row see most and start first.
    """
    lengths = np.asarray(query_lens, dtype=np.int32)
    counts = -(-lengths // num_queries)
    rows = np.repeat(np.arange(first_row, first_row + len(lengths), dtype=np.int32), counts)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows[::-1].copy(), (nth * num_queries).astype(np.int32)[::-1].copy()


def prefill_tiles(
    query_lens: Sequence[int],
    host_seq_lens: Sequence[int],
    first_row: int,
    seq_lens: torch.Tensor,
    upload: Callable[[npt.NDArray[np.int32]], torch.Tensor],
) -> PrefillTiles:
    """Cuts the prefill rows of a step; `first_row` is the first of them, and rows before it have one token each."""
    num_queries = queries_per_tile(max(query_lens))
    rows, starts = cut_queries(query_lens, first_row, num_queries)
    first_tokens = first_row + np.cumsum(query_lens) - query_lens
    whole = tuple(
        WholePrompt(first_row + index, int(first_tokens[index]), query_len)
        for index, (query_len, seq_len) in enumerate(zip(query_lens, host_seq_lens, strict=True))
        if query_len == seq_len and query_len >= WHOLE_TOKENS
    )
    is_whole = np.isin(rows, [prompt.row for prompt in whole])
    order = np.argsort(is_whole, kind="stable")
    return PrefillTiles(
        upload(rows[order]),
        upload(starts[order]),
        seq_lens,
        num_queries,
        whole,
        int(is_whole.sum()),
    )


def queries_per_tile(max_query_len: int) -> int:
    """How long the pieces should be where no row has more queries."""
    return 128 if max_query_len > 64 else 64


class AttentionRows(Protocol):
    """Decode rows (one token each) come first, then prefill rows (any number of tokens)."""

    @property
    def query_start_loc(self) -> torch.Tensor:
        """[num_rows + 1] int32; first token of each row."""

    @property
    def seq_lens(self) -> torch.Tensor:
        """[num_rows] int32; KV length with this step's tokens, 0 for masked rows."""

    @property
    def block_table(self) -> torch.Tensor:
        """[num_rows, max_blocks] int32; entries beyond a row's blocks hold any valid block id."""

    @property
    def num_decode_rows(self) -> int:
        """How many rows have exactly one token and a KV length that only the device knows."""

    @property
    def max_decode_seq_len(self) -> int:
        """Host upper bound of the decode rows' KV lengths."""

    @property
    def prefill_query_lens(self) -> tuple[int, ...]:
        """Tokens of each prefill row."""

    @property
    def prefill_seq_lens(self) -> tuple[int, ...]:
        """KV length of each prefill row."""

    @property
    def prefill_tiles(self) -> PrefillTiles | None:
        """How prefill rows are cut on a CUDA device; None: without prefill rows, or each layer cuts again."""

    @property
    def gather(self) -> tuple[DecodeGather, ...] | None:
        """What `gather_rows` gave for these rows, or None: then each layer computes it again."""


def gather_rows(
    layer_kv: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    num_decode_rows: int,
    max_decode_seq_len: int,
) -> tuple[DecodeGather, ...]:
    """Computed once per step, from any layer of the pool; arguments as in AttentionRows.

    Every decode row is in one of them; there are several if lengths differ much, so that short rows are not
    padded to the longest. Kernels on a CUDA device read the tables themselves and need none of it.
    """
    return tuple(
        _gather_decode(
            layer_kv, block_table[:num_decode_rows], seq_lens[:num_decode_rows], rows, length
        )
        for rows, length in _similar_rows(seq_lens[:num_decode_rows], max_decode_seq_len)
    )


def _similar_rows(
    seq_lens: torch.Tensor, max_seq_len: int
) -> list[tuple[torch.Tensor | None, int]]:
    """Decode rows in groups whose lengths differ by less than a factor of two: (rows, greatest length)."""
    if not len(seq_lens):
        return []
    if max_seq_len <= _SHORT:
        return [(None, max_seq_len)]
    ordered, order = seq_lens.sort(descending=True)
    lengths = ordered.tolist()
    starts = [0]
    for row, length in enumerate(lengths):
        longest = lengths[starts[-1]]
        if longest > _SHORT and 2 * length < longest:
            starts.append(row)
    if len(starts) == 1:
        return [(None, max_seq_len)]
    ends = [*starts[1:], len(lengths)]
    return [
        (order[start:end], max(lengths[start], 1)) for start, end in zip(starts, ends, strict=True)
    ]


def decode_window_bias(gather: DecodeGather, sliding_window: int) -> torch.Tensor:
    """The decode rows' bias with a window: [num_decode_rows, 1, 1, length]."""
    positions = torch.arange(gather.bias.shape[-1], device=gather.bias.device)
    before = (positions < gather.seq_lens - sliding_window)[:, None, None, :]
    return gather.bias.masked_fill(before, very_low(gather.bias.dtype))


def pool_from(layer_kv: torch.Tensor, width: int) -> torch.Tensor:
    """From a layer's start to the end of the pool, whatever layer, in rows of `width` numbers: a view [n, width]."""
    pool_size = layer_kv.untyped_storage().nbytes() // layer_kv.element_size()
    num_rows = (pool_size - layer_kv.storage_offset()) // width
    return layer_kv.as_strided((num_rows, width), (width, 1))


def product_dtype(cache: torch.dtype) -> torch.dtype:
    """What the torch reference computes in: the cache's type, but no CPU is fast with float16."""
    return torch.float32 if cache == torch.float16 else cache


def very_low(dtype: torch.dtype) -> float:
    """In place of a score, or added to it, it leaves a weight of zero.

    It is finite, so that a row that is hidden altogether gives no 0 / 0.
    """
    return torch.finfo(dtype).min / 2


def _gather_decode(
    layer_kv: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    rows: torch.Tensor | None,
    length: int,
) -> DecodeGather:
    if rows is not None:
        block_table, seq_lens = block_table[rows], seq_lens[rows]
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    tokens_per_piece = block_size if len(seq_lens) * length >= _MANY_TOKENS else 1
    length = -(-length // tokens_per_piece) * tokens_per_piece
    pieces_per_block = layer_kv.stride(0) // (tokens_per_piece * head_dim)
    positions = torch.arange(length, device=layer_kv.device)
    beyond = positions >= seq_lens[:, None]
    block_table = block_table.to(torch.int64)
    # Nothing that lies beyond gets into a product: a former tenant may have left numbers there that are not
    # finite, and a weight of zero would not silence them.
    if tokens_per_piece == 1:
        positions = positions.masked_fill(beyond, 0)
        block_ids = block_table.gather(1, positions // block_size)
        pieces = block_ids * pieces_per_block + positions % block_size
    else:
        pieces = block_table[:, : length // block_size] * pieces_per_block
    dtype = product_dtype(layer_kv.dtype)
    bias = torch.zeros(beyond.shape, dtype=dtype, device=layer_kv.device)
    bias.masked_fill_(beyond, very_low(dtype))
    heads = torch.arange(2 * num_kv_heads, device=layer_kv.device) * (
        block_size // tokens_per_piece
    )
    return DecodeGather(
        rows=rows,
        tokens_per_piece=tokens_per_piece,
        pieces=(pieces[:, None] + heads.view(2, 1, num_kv_heads, 1)).flatten(),
        beyond=None if tokens_per_piece == 1 else _gathered_tokens(beyond, num_kv_heads),
        bias=bias[:, None, None],
        seq_lens=seq_lens[:, None],
    )


def _gathered_tokens(mask: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Where the tokens of a mask [num_rows, length] are in [2, num_rows, num_kv_heads, length]: [n] int64."""
    num_rows, length = mask.shape
    row, position = mask.nonzero(as_tuple=True)
    keys_or_values = torch.arange(2, device=mask.device).view(2, 1, 1) * num_rows
    heads = torch.arange(num_kv_heads, device=mask.device)
    of_head = (keys_or_values + row[:, None]) * num_kv_heads + heads
    return (of_head * length + position[:, None]).flatten()
