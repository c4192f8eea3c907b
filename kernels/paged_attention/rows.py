"""What attention needs to know about the rows of a step; the same for all layers."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class DecodeGather:
    """Where the decode rows' keys and values lie and which of them count, for the torch reference.

    Computed once per step; it holds for every layer because a layer is an offset into the pool.
    """

    # [2 * num_decode_rows * num_kv_heads * num_blocks] int64; runs of block_size tokens of one head
    # in the pool: of all keys, row by row and head by head, then of all values
    runs: torch.Tensor
    # [num_decode_rows, num_blocks * block_size] bool; True: beyond the row's KV length
    beyond: torch.Tensor


class AttentionRows(Protocol):
    """Decode rows (one token each) come first, then prefill rows (any number of tokens)."""

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
    def gather(self) -> DecodeGather | None:
        """What `decode_gather` gave for these rows, or None: then each layer computes it again."""


def decode_gather(
    layer_kv: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, max_seq_len: int
) -> DecodeGather:
    """The gather of decode rows, from any layer of the pool.

    layer_kv    [num_blocks, 2, num_kv_heads, block_size, head_dim]
    block_table [num_decode_rows, at least ceil(max_seq_len / block_size)] int32
    seq_lens    [num_decode_rows] int32
    """
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    num_blocks = -(-max_seq_len // block_size)
    device = block_table.device
    runs_per_block = layer_kv.stride(0) // (block_size * head_dim)
    heads = torch.arange(2 * num_kv_heads, device=device).view(2, 1, num_kv_heads, 1)
    first_run = block_table[:, None, :num_blocks].to(torch.int64) * runs_per_block
    positions = torch.arange(num_blocks * block_size, device=device, dtype=torch.int32)
    return DecodeGather(
        runs=(first_run + heads).flatten(), beyond=positions >= seq_lens.unsqueeze(1)
    )
