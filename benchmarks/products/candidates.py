"""The tiles that are worth compiling for a product, by what limits it.

A product that reads its weight as fast as the memory gives it needs some 64 KiB in flight on every multiprocessor, and
all of its programs resident at once: a second round of few programs would leave most of them idle. Either as many
splits as that takes, or programs that share the work equally, one or two on each multiprocessor.
"""

from typing import Final

from pillion.kernels.fused_linear.tiles import Kind, Tile, WideTile

MULTIPROCESSORS: Final = 132
SHARED_BYTES: Final = 227 << 10
# What a program takes besides its tiles.
_OVERHEAD_BYTES: Final = 2 << 10
# Programs that read enough together.
_ENOUGH: Final = 96
# (rows of the weight, K per step, warps, tiles in flight) for each number of rows of x.
_SINGLE: Final[dict[int, list[tuple[int, int, int, int]]]] = {
    8: [(16, 256, 4, 5), (32, 128, 4, 6), (32, 256, 4, 5), (64, 128, 4, 5)],
    32: [(32, 128, 4, 5), (64, 128, 4, 4), (64, 64, 4, 7), (128, 64, 4, 5)],
    64: [
        (32, 128, 4, 4),
        (64, 64, 4, 6),
        (64, 128, 4, 3),
        (128, 64, 4, 4),
        (128, 64, 8, 8),
        (256, 64, 8, 5),
    ],
    128: [(32, 64, 4, 5), (64, 64, 4, 4), (128, 64, 8, 3), (128, 64, 8, 6)],
    256: [(64, 64, 8, 4), (128, 64, 8, 4)],
}
_PAIRS: Final[dict[int, list[tuple[int, int, int, int]]]] = {
    8: [(16, 256, 4, 4), (32, 128, 4, 5), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4)],
    32: [(16, 128, 4, 5), (32, 128, 4, 4), (64, 64, 4, 5), (64, 128, 8, 5), (128, 64, 8, 6)],
    64: [(32, 64, 4, 6), (64, 64, 4, 4), (64, 64, 8, 8), (64, 128, 8, 4), (128, 64, 8, 5)],
    128: [(32, 64, 4, 5), (64, 64, 8, 3), (64, 64, 8, 6), (128, 64, 8, 4)],
    256: [(64, 64, 8, 4)],
}
# The same of programs that share the work, and how many of them a multiprocessor has room for.
_EQUAL: Final[dict[int, dict[Kind, list[tuple[int, int, int, int, int]]]]] = {
    8: {
        "qkv": [(128, 128, 4, 6, 1), (64, 128, 4, 12, 1), (64, 128, 4, 6, 2), (64, 256, 4, 4, 2)],
        "add": [(64, 128, 4, 12, 1), (64, 128, 4, 6, 2), (64, 256, 4, 4, 2), (128, 128, 8, 6, 1)],
        "gated": [(64, 128, 4, 6, 1), (64, 128, 4, 4, 2), (64, 64, 4, 7, 2), (64, 128, 8, 6, 1)],
    },
    32: {
        "qkv": [(128, 64, 4, 4, 2), (128, 64, 8, 8, 1), (64, 128, 4, 4, 2)],
        "add": [(64, 128, 4, 8, 1), (64, 128, 4, 4, 2), (128, 64, 8, 8, 1), (128, 128, 8, 5, 1)],
        "gated": [(64, 64, 4, 5, 2), (64, 128, 8, 5, 1), (64, 128, 4, 5, 1)],
    },
    64: {
        "qkv": [(128, 64, 8, 6, 1), (64, 128, 4, 3, 2), (128, 128, 8, 3, 1)],
        "add": [(64, 128, 4, 3, 2), (64, 128, 4, 6, 1), (128, 64, 8, 8, 1), (128, 64, 4, 3, 2)],
        "gated": [(64, 64, 4, 4, 2), (64, 128, 8, 4, 1), (64, 64, 8, 8, 1), (128, 64, 8, 4, 1)],
    },
    128: {
        "add": [(64, 128, 8, 4, 1), (128, 64, 8, 5, 1)],
        "gated": [(64, 64, 8, 6, 1), (64, 128, 8, 3, 1)],
    },
}
# Rows of x in one tile for each padded number of rows.
_BLOCK_ROWS: Final = {
    8: [8],
    16: [32],
    32: [32],
    48: [64],
    64: [64],
    96: [128, 64],
    128: [128, 64],
    160: [256, 128, 64],
    192: [256, 128, 64],
    224: [256, 128, 64],
    256: [256, 128],
}


def block_rows(rows: int) -> list[int]:
    """Rows of x in one tile, for so many padded rows: few variants, as a few rows that are not there cost nothing."""
    return _BLOCK_ROWS[rows]


def _splits(num_tiles: int, k: int, block_k: int, slots: int) -> list[int]:
    """Up to two: enough programs without a second round; where K is too short for that, what it gives."""
    possible = [splits for splits in (1, 2, 4, 8) if splits == 1 or k >= 2 * splits * block_k]
    fitting = [splits for splits in possible if _ENOUGH <= num_tiles * splits <= slots]
    if fitting:
        return fitting[:2]
    if num_tiles > slots:
        return [1]
    return [splits for splits in possible if num_tiles * splits < _ENOUGH][-2:]


def wide_tiles(kind: Kind, n: int, k: int, rows: int, head_dim: int) -> list[WideTile]:
    """For a weight [n, k] and so many padded rows, from 8 on."""
    found: dict[WideTile, None] = {}
    for tile_rows in block_rows(rows):
        is_pair = kind == "gated"
        for block_n, block_k, warps, stages in (_PAIRS if is_pair else _SINGLE)[tile_rows]:
            # Query-key-value products take whole heads, or below that as much of both halves.
            two = is_pair or (kind == "qkv" and block_n < head_dim)
            width = block_n // 2 if kind == "qkv" and two else block_n
            tile_bytes = ((2 if two else 1) * width + tile_rows) * block_k * 2
            if kind == "qkv" and two and tile_rows > 64 and width < 64:
                continue  # too narrow for the tensor cores to take it from shared memory
            if width < 16 or stages * tile_bytes > SHARED_BYTES - _OVERHEAD_BYTES:
                continue
            resident = SHARED_BYTES // (stages * tile_bytes + _OVERHEAD_BYTES)
            resident = min(resident, 64 // warps // 2)
            num_tiles = -(-n // (block_n * (2 if is_pair else 1))) * -(-rows // tile_rows)
            if kind == "head":
                choices = [1]
            else:
                choices = _splits(num_tiles, k, block_k, resident * MULTIPROCESSORS)
            for splits in choices:
                found[WideTile(width, block_k, warps, stages, splits, tile_rows, 1024)] = None
    return list(found)


def equal_tiles(kind: Kind, n: int, k: int, rows: int, head_dim: int) -> list[WideTile]:
    """The same for programs that share the work equally."""
    found = []
    tile_rows = block_rows(rows)[0]
    shapes = _EQUAL.get(tile_rows, {}).get(kind, [])
    for block_n, block_k, warps, stages, resident in shapes:
        width = block_n // 2 if kind == "qkv" and block_n < head_dim else block_n
        num_tiles = -(-n // (block_n * (2 if kind == "gated" else 1)))
        programs = min(resident * MULTIPROCESSORS, num_tiles * -(-k // block_k) // 2)
        tile = WideTile(width, block_k, warps, stages, 1, tile_rows, 0, True, programs)
        if programs >= _ENOUGH:
            found.append(tile)
    return found


def ahead(form: Tile | WideTile, k: int) -> list[Tile | WideTile]:
    """The same tile, asking for more or fewer weights ahead."""
    amounts = [0, 256, 512, 1024, 2048, 4096]
    return [form._replace(prefetch_bytes=amount) for amount in amounts if amount <= 2 * k]
