"""Which tile a product runs with: measured on an H200 for known shapes, else chosen by shape.

`benchmarks/tune_fused_linear.py` makes the table.
"""

from typing import Final, NamedTuple


class Tile(NamedTuple):
    """How a product is cut: output columns and K per step of a program, its warps, loads in flight."""

    block_n: int
    block_k: int
    warps: int
    stages: int


# (kind, rows of the weight, columns of the weight) -> {padded rows: tile}. Medians on one H200.
_MEASURED: Final[dict[tuple[str, int, int], dict[int, Tile]]] = {
    # 135M (SmolLM2)
    ("qkv", 960, 576): {1: Tile(2, 1024, 4, 4), 8: Tile(16, 128, 2, 6)},
    ("add", 576, 576): {1: Tile(2, 1024, 4, 2), 8: Tile(32, 128, 2, 4)},
    ("gated", 3072, 576): {1: Tile(2, 1024, 4, 4), 8: Tile(16, 128, 2, 4)},
    ("add", 576, 1536): {1: Tile(4, 512, 2, 4), 8: Tile(16, 256, 2, 6)},
    ("norm", 49152, 576): {1: Tile(16, 256, 2, 4), 8: Tile(128, 64, 4, 4)},
    # 1B (Llama 3.2)
    ("qkv", 3072, 2048): {1: Tile(4, 512, 2, 4), 8: Tile(16, 256, 4, 4)},
    ("add", 2048, 2048): {1: Tile(4, 512, 2, 4), 8: Tile(16, 128, 4, 6)},
    ("gated", 16384, 2048): {1: Tile(8, 256, 2, 2), 8: Tile(64, 256, 4, 4)},
    ("add", 2048, 8192): {1: Tile(8, 512, 4, 4), 8: Tile(32, 256, 4, 6)},
    ("norm", 128256, 2048): {1: Tile(16, 256, 4, 4), 8: Tile(128, 128, 4, 4)},
    # 8B (Llama 3.1)
    ("qkv", 6144, 4096): {1: Tile(8, 256, 4, 4), 8: Tile(32, 256, 4, 4)},
    ("add", 4096, 4096): {1: Tile(8, 256, 4, 4), 8: Tile(32, 256, 4, 6)},
    ("gated", 28672, 4096): {1: Tile(4, 512, 2, 4), 8: Tile(64, 128, 4, 4)},
    ("add", 4096, 14336): {1: Tile(8, 512, 4, 4), 8: Tile(32, 256, 4, 6)},
    ("norm", 128256, 4096): {1: Tile(8, 1024, 4, 4), 8: Tile(128, 128, 4, 4)},
}


def best_tile(kind: str, n: int, k: int, rows: int) -> Tile:
    """The tile for a weight [n, k] and a padded number of rows (1, 8, 16, ...)."""
    measured = _MEASURED.get((kind, n, k), {})
    if rows in measured:
        return measured[rows]
    if rows == 1:
        if k <= 1024:
            return Tile(2 if n <= 8192 else 8, 1024, 4, 4)
        return Tile(8, 512, 4, 4) if n <= 65536 else Tile(8, 1024, 4, 4)
    if kind in ("qkv", "add") or n <= 4096:
        return Tile(16 if k <= 1024 else 32, 128, 4, 4)
    return Tile(64, 128, 4, 4)
