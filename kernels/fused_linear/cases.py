"""The grid that products on a `Scaled` stream are tested on."""

from dataclasses import dataclass
from typing import Final

from pillion.kernels.fused_linear.tiles import WideTile


@dataclass(frozen=True, slots=True)
class WideCase:
    """Numbers of rows and sizes that tiles divide and that they don't."""

    tile: WideTile
    num_rows: int
    hidden: int = 192
    ffn: int = 96
    num_q_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 64
    has_bias: bool = False


# Parts of half a head, whole heads, several heads; one part of K and several, also more than there is K for.
WIDE_CASES: Final = (
    WideCase(WideTile(16, 64, 4, 2, 1, 8), 1),
    WideCase(WideTile(16, 64, 4, 2, 2, 8, 256), 8, has_bias=True),
    WideCase(WideTile(32, 128, 4, 3, 2, 32, 512), 13, hidden=200, ffn=80),
    WideCase(WideTile(64, 64, 4, 4, 1, 32), 20, ffn=1000),
    WideCase(WideTile(64, 64, 4, 4, 3, 64), 64, num_q_heads=4, num_kv_heads=2, has_bias=True),
    WideCase(WideTile(64, 64, 4, 3, 8, 64, 256), 70, hidden=256, head_dim=128),
    WideCase(WideTile(128, 64, 8, 3, 2, 128, 256), 130, num_q_heads=2, num_kv_heads=1),
    WideCase(WideTile(128, 64, 8, 3, 1, 256), 200, num_q_heads=3, num_kv_heads=3, head_dim=32),
    # Equal shares: as many programs as tiles, more than tiles, than steps, one; several blocks of rows.
    WideCase(WideTile(16, 64, 4, 2, 1, 8, 256, programs=6), 8, has_bias=True),
    WideCase(WideTile(32, 128, 4, 3, 1, 32, 512, early=False, programs=5), 13, hidden=200, ffn=80),
    WideCase(WideTile(64, 64, 4, 4, 1, 64, programs=7), 64, num_q_heads=4, num_kv_heads=2),
    WideCase(WideTile(64, 64, 4, 4, 1, 32, programs=1), 20, ffn=1000),
    WideCase(WideTile(64, 64, 4, 3, 1, 64, programs=264), 130, hidden=256, head_dim=128),
    WideCase(WideTile(128, 64, 8, 3, 1, 128, programs=11), 200, ffn=704, head_dim=32),
    WideCase(WideTile(16, 64, 4, 2, 2, 8, early=False), 8),
)
