"""The grid that every implementation is tested on."""

from dataclasses import dataclass
from typing import Final

import torch

from pillion.kernels.paged_attention.rows import DecodeGather, PrefillTiles

# Type of queries and cache, and the absolute error that it allows where values are normal.
TOLERANCES: Final = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 4e-3}


@dataclass(frozen=True, slots=True)
class Rows:
    """The plainest AttentionRows."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    num_decode_rows: int
    max_query_len: int
    max_seq_len: int
    max_decode_seq_len: int
    prefill_query_lens: tuple[int, ...]
    prefill_seq_lens: tuple[int, ...]
    prefill_tiles: PrefillTiles | None = None
    gather: tuple[DecodeGather, ...] | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's tensors, and what they were made from."""

    # [num_tokens, num_q_heads, head_dim]
    q: torch.Tensor
    # [num_blocks, 2, num_kv_heads, block_size, head_dim], a layer in the middle of a pool
    layer_kv: torch.Tensor
    rows: Rows
    # per row [2, seq_len, num_kv_heads, head_dim]
    dense_kv: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """KV lengths of decode rows (0: masked) and (query_len, seq_len) of prefill rows."""

    decode: tuple[int, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()
    num_q_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    sliding_window: int | None = None
    spare_blocks: int = 0  # columns of the block table beyond what the longest row needs

    def inputs(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Inputs:
        """Random numbers; every number of the pool that belongs to no row's tokens is NaN."""
        generator = torch.Generator().manual_seed(seed)
        lengths = [*self.decode, *(seq_len for _, seq_len in self.prefill)]
        queries = [1] * len(self.decode) + [query_len for query_len, _ in self.prefill]
        most = -(-max(lengths, default=0) // self.block_size)
        num_blocks = sum(-(-length // self.block_size) for length in lengths) + 3
        shape = (num_blocks, 3, 2, self.num_kv_heads, self.block_size, self.head_dim)
        pool = torch.full(shape, float("nan"))
        layer = pool[:, 1]
        free = torch.randperm(num_blocks, generator=generator).tolist()
        # Where a row has no block, the table names one that is full of NaN.
        poisoned = free.pop()
        table = torch.full((len(lengths), most + self.spare_blocks), poisoned, dtype=torch.int32)
        dense = []
        for row, length in enumerate(lengths):
            kv = torch.randn(2, length, self.num_kv_heads, self.head_dim, generator=generator)
            for column, start in enumerate(range(0, length, self.block_size)):
                block = table[row, column] = free.pop()
                part = kv[:, start : start + self.block_size].transpose(1, 2)
                layer[block, :, :, : part.shape[2]] = part
            dense.append(kv.to(dtype))
        q = torch.randn(sum(queries), self.num_q_heads, self.head_dim, generator=generator)
        starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        rows = Rows(
            query_start_loc=starts.to(device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
            block_table=table.to(device),
            num_decode_rows=len(self.decode),
            max_query_len=max(queries, default=0),
            max_seq_len=max(lengths, default=0),
            max_decode_seq_len=max(self.decode, default=0),
            prefill_query_lens=tuple(query_len for query_len, _ in self.prefill),
            prefill_seq_lens=tuple(seq_len for _, seq_len in self.prefill),
        )
        layer_kv = pool.to(device, dtype)[:, 1]
        return Inputs(q.to(device, dtype), layer_kv, rows, tuple(dense))


CASES: Final = (
    Case(),
    Case(decode=(1,)),
    Case(decode=(16,)),
    Case(decode=(17, 1, 300, 16, 15)),
    Case(decode=(5, 0, 40)),
    Case(decode=(700, 3, 1200, 513)),
    Case(decode=(33, 64), spare_blocks=5),
    Case(prefill=((1, 1),)),
    Case(prefill=((40, 40), (1, 33), (7, 23), (16, 32))),
    Case(prefill=((130, 530),)),
    Case(decode=(21, 90), prefill=((5, 5), (12, 50))),
    Case(decode=(20, 3), num_q_heads=1, num_kv_heads=1, head_dim=7, block_size=8),
    Case(decode=(70, 31), prefill=((9, 40),), num_q_heads=4, num_kv_heads=4, head_dim=80),
    Case(decode=(70, 31), prefill=((9, 9),), num_q_heads=8, num_kv_heads=1, head_dim=128),
    Case(decode=(129, 500), num_q_heads=14, num_kv_heads=2, block_size=128),
    Case(decode=(40, 700), prefill=((9, 20),), num_q_heads=32, num_kv_heads=1),
    Case(decode=(21, 0, 530), num_q_heads=34, num_kv_heads=2, sliding_window=300),
    Case(decode=(50, 9), prefill=((70, 90),), num_q_heads=2, num_kv_heads=1, head_dim=256),
    Case(decode=(50, 8, 7, 1), prefill=((20, 20), (3, 60)), sliding_window=8),
    Case(decode=(1100, 30), prefill=((5, 1100),), sliding_window=16),
    Case(decode=(9,), prefill=((8, 8),), sliding_window=1),
    Case(decode=(5, 0, 40, 16, 17, 1, 33, 100, 127)),
    Case(decode=(50, 8, 7, 1, 60, 61, 62, 63, 9), sliding_window=8),
    Case(decode=(0, 1, 16, 17, *range(100, 128))),
    Case(decode=(130, 0, *range(500, 509)), sliding_window=40, spare_blocks=1),
    Case(decode=(2049,), num_q_heads=2, num_kv_heads=2, head_dim=7, block_size=8),
    Case(prefill=((300, 300), (140, 333)), sliding_window=100),
    Case(decode=(9,), prefill=((8, 8), (20, 20)), sliding_window=64),
)
