"""Which tile a product runs with: measured at start-up, or on an H200 for known shapes, else chosen by shape.

`benchmarks/tune_fused_linear.py` makes the table.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

Kind = Literal["qkv", "add", "gated", "head"]


class Tile(NamedTuple):
    """How a product is cut: output columns and K per step of a program, its warps, loads in flight, rows.

    And the bytes of each of its rows of the weight that a program asks for before it waits for the launch before,
    and whether the launch behind is let in at once then, rather than behind the main loop.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    block_rows: int = 64  # at most; fewer if the product has fewer
    prefetch_bytes: int = 0  # a multiple of 256
    early: bool = False


class WideTile(NamedTuple):
    """How a product on a `Scaled` stream is cut.

    Rows of one tile of the weight (gated: as many again of the second half; the query-key-value product: whole
    heads, or a part of half a head and as many again of the other half), K per step, warps, tiles in flight, parts
    of K, rows, and the bytes of each row of the weight that are asked for before the launch before has ended.
    `early` as above. `programs` of more than 0: so many share the work equally, rather than one for each tile and
    part of K.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    splits: int
    block_rows: int
    prefetch_bytes: int = 0  # a multiple of 256
    early: bool = True
    programs: int = 0

    def cuts_heads(self, head_dim: int) -> bool:
        """Whether each tile of a query-key-value product is whole heads, or equal parts of both halves of one."""
        if self.block_n < head_dim:
            return head_dim // 2 % self.block_n == 0
        return self.block_n % head_dim == 0


Choice = Tile | WideTile | None

# (kind, rows of the weight, columns of the weight) -> {padded rows: tile, or None where the library's product
# was faster}
Table = Mapping[tuple[Kind, int, int], Mapping[int, Choice]]

# The device's name, as the driver says it.
MEASURED_ON: Final = "NVIDIA H200"
# Medians on one of these.
MEASURED: Final[dict[tuple[Kind, int, int], dict[int, Choice]]] = {
    # 135M (SmolLM2)
    ("qkv", 960, 576): {
        1: Tile(2, 1024, 4, 2),
        8: WideTile(64, 128, 4, 5, 1, 8, 512),
        16: WideTile(64, 128, 4, 4, 1, 32, 1024),
        32: WideTile(64, 128, 4, 4, 1, 32, 1024),
        48: WideTile(64, 128, 4, 3, 1, 64, 1024, False),
        64: WideTile(64, 128, 4, 3, 1, 64, 1024),
        128: WideTile(64, 128, 4, 3, 1, 64, 1024),
        160: None,
        192: WideTile(64, 128, 4, 3, 1, 64, 1024),
        224: None,
    },
    ("add", 576, 576): {
        1: Tile(4, 1024, 8, 4),
        8: Tile(32, 128, 2, 6, 64, 1024, True),
        16: WideTile(64, 128, 4, 4, 1, 32, 1024),
        32: WideTile(64, 128, 4, 4, 1, 32, 1024),
        48: Tile(16, 128, 4, 4, 32, 512),
        64: Tile(16, 128, 4, 4, 32, 512, True),
        128: WideTile(64, 128, 4, 3, 1, 64, 1024),
        160: WideTile(64, 128, 4, 3, 1, 64, 1024),
        192: WideTile(64, 128, 4, 3, 1, 64, 1024),
        224: WideTile(64, 128, 4, 3, 1, 64, 1024),
    },
    ("gated", 3072, 576): {
        1: Tile(4, 1024, 4, 2),
        8: Tile(16, 128, 2, 4, 64, 0, True),
        16: WideTile(16, 128, 4, 5, 1, 32, 512),
        32: WideTile(16, 128, 4, 5, 1, 32, 512),
        48: WideTile(64, 128, 8, 4, 1, 64),
        64: WideTile(64, 128, 8, 4, 1, 64),
        128: WideTile(32, 64, 4, 6, 1, 64, 256),
        160: WideTile(64, 128, 8, 4, 1, 64, 256),
        192: WideTile(64, 128, 8, 4, 1, 64, 256),
        224: WideTile(64, 64, 4, 4, 1, 64, 1024),
    },
    ("add", 576, 1536): {
        1: Tile(8, 512, 4, 4),
        8: WideTile(32, 128, 4, 6, 4, 8, 512),
        16: WideTile(32, 128, 4, 5, 4, 32, 512),
        32: WideTile(32, 128, 4, 5, 4, 32, 512),
        48: WideTile(32, 128, 4, 4, 4, 64, 256),
        64: WideTile(32, 128, 4, 4, 4, 64, 256),
        128: WideTile(64, 128, 4, 3, 2, 64, 2048),
        160: None,
        192: WideTile(64, 128, 4, 3, 4, 64, 1024),
        224: None,
    },
    ("head", 49152, 576): {
        1: Tile(16, 256, 2, 4),
        8: Tile(32, 64, 2, 2),
        16: Tile(64, 64, 4, 2),
        32: Tile(64, 64, 4, 4),
        64: Tile(64, 64, 4, 2),
        128: None,
        256: None,
    },
    # 1B (Llama 3.2)
    ("qkv", 3072, 2048): {
        1: Tile(2, 1024, 2, 2),
        8: WideTile(64, 256, 4, 4, 1, 8, 0, False, 192),
        16: WideTile(64, 128, 4, 4, 2, 32, 256, False),
        32: WideTile(64, 128, 4, 4, 2, 32, 256),
        64: None,
        96: None,
        128: None,
        192: WideTile(64, 64, 4, 6, 1, 64, 1024),
        224: None,
        256: None,
    },
    ("add", 2048, 2048): {
        1: Tile(8, 512, 2, 4, 64, 2048, True),
        8: WideTile(32, 128, 4, 6, 4, 8, 512),
        16: None,
        32: None,
        64: None,
        96: None,
        128: None,
        192: None,
        224: None,
        256: None,
    },
    ("gated", 16384, 2048): {
        1: Tile(8, 256, 2, 2),
        8: WideTile(64, 128, 4, 3, 1, 8, 256, False),
        16: Tile(64, 128, 8, 4),
        32: Tile(64, 128, 8, 4),
        64: WideTile(64, 128, 8, 4, 1, 64),
        96: WideTile(64, 64, 8, 6, 1, 128),
        128: WideTile(64, 64, 8, 6, 1, 128),
        192: None,
        224: WideTile(128, 64, 8, 4, 1, 128),
        256: WideTile(128, 64, 8, 4, 1, 128),
    },
    ("add", 2048, 8192): {
        1: Tile(4, 512, 4, 4),
        8: WideTile(64, 128, 4, 5, 4, 8),
        16: WideTile(64, 128, 4, 4, 4, 32, 0, False),
        32: WideTile(64, 128, 4, 4, 4, 32),
        64: None,
        96: None,
        128: WideTile(64, 128, 4, 3, 4, 64, 256),
        192: WideTile(128, 64, 8, 8, 2, 64, 0, False),
        224: None,
        256: None,
    },
    ("head", 128256, 2048): {
        1: Tile(4, 1024, 2, 2),
        8: WideTile(64, 128, 4, 5, 1, 8),
        16: Tile(64, 128, 2, 4),
        32: Tile(64, 128, 4, 2),
        64: WideTile(128, 64, 4, 4, 1, 64),
        128: None,
        256: None,
    },
    # 8B (Llama 3.1)
    ("qkv", 6144, 4096): {
        1: Tile(8, 256, 4, 4),
        8: Tile(32, 256, 2, 4),
        16: WideTile(128, 64, 4, 5, 2, 32),
        32: None,
        48: None,
        64: None,
        96: None,
        128: None,
        224: None,
        256: None,
    },
    ("add", 4096, 4096): {
        1: Tile(8, 256, 4, 4),
        8: Tile(32, 256, 4, 6),
        16: WideTile(64, 128, 4, 4, 4, 32, 512),
        32: WideTile(64, 64, 4, 7, 4, 32, 1024),
        48: WideTile(64, 64, 4, 6, 2, 64, 0, False),
        64: None,
        96: None,
        128: None,
        224: None,
        256: None,
    },
    ("gated", 28672, 4096): {
        1: Tile(4, 512, 2, 4),
        8: WideTile(64, 128, 4, 4, 1, 8, 0, False),
        16: WideTile(64, 64, 4, 5, 1, 32, 256),
        32: WideTile(64, 64, 4, 5, 1, 32, 512),
        48: WideTile(128, 64, 8, 5, 1, 64, 256),
        64: WideTile(64, 128, 8, 4, 1, 64, 0, False),
        96: WideTile(128, 64, 8, 4, 1, 128),
        128: WideTile(64, 64, 8, 3, 1, 128),
        224: None,
        256: WideTile(64, 64, 8, 4, 1, 256),
    },
    ("add", 4096, 14336): {
        1: Tile(4, 512, 2, 4),
        8: Tile(32, 256, 4, 6),
        16: None,
        32: WideTile(64, 128, 4, 4, 4, 32, 512, False),
        48: None,
        64: WideTile(64, 128, 4, 3, 4, 64),
        96: None,
        128: None,
        224: WideTile(128, 64, 8, 6, 2, 128),
        256: WideTile(128, 64, 8, 6, 2, 128, 256),
    },
    ("head", 128256, 4096): {
        1: Tile(4, 1024, 2, 4),
        8: WideTile(64, 128, 4, 5, 1, 8),
        16: Tile(64, 128, 2, 4),
        32: Tile(64, 128, 4, 2),
        64: WideTile(128, 64, 4, 4, 1, 64, 256),
        128: None,
        256: None,
    },
}


# A process has one model on one device, and its kernels' callers know only tensors.
_tuned: Table = {}

# Up to so many rows each; beyond, powers of two.
_CLASSES: Final = (1, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
# Whose forms a class takes that has not been measured. Beyond 128 rows those that are not there cost more than the
# library's product does, which has tiles for all numbers of them.
_LIKE: Final = {48: 64, 96: 128}
# Beyond one row a fused product pays, unmeasured, where launches weigh more than bytes.
_SMALL_K: Final = 1024
_MOST_ROWS: Final = 32


def padded_rows(num_rows: int) -> int:
    """The class of a number of rows: the next of 1, 8, 16, 32, 48 and so on."""
    place = bisect_left(_CLASSES, num_rows)
    return _CLASSES[place] if place < len(_CLASSES) else 1 << (num_rows - 1).bit_length()


def measured_as(rows: int) -> int:
    """The class whose forms a padded number of rows takes if it has not been measured."""
    return _LIKE.get(rows, rows)


def choose(kind: Kind, n: int, k: int, num_rows: int) -> Choice:
    """The fastest way for a weight [n, k] and so many rows; None is the library's product."""
    rows = padded_rows(num_rows)
    tuned = _tuned.get((kind, n, k), {})
    for measured in (rows, measured_as(rows)):
        if measured in tuned:
            return tuned[measured]
    return choose_untuned(kind, n, k, rows)


def choose_untuned(kind: Kind, n: int, k: int, rows: int) -> Choice:
    """The same for a padded number of rows, as far as can be known without a measurement on this device."""
    table = MEASURED.get((kind, n, k), {})
    for measured in (rows, measured_as(rows)):
        if measured in table:
            return table[measured]
    if rows == 1 or (k <= _SMALL_K and rows <= _MOST_ROWS and kind != "head"):
        return default_tile(kind, n, k, rows)
    return None


def use_tuned(table: Table) -> None:
    """From now on this process's products run as a table says that was measured on its device."""
    global _tuned
    _tuned = table


@contextmanager
def trying(table: Table) -> Iterator[None]:
    """Products run as a table says, but only inside."""
    before = _tuned
    use_tuned(table)
    try:
        yield
    finally:
        use_tuned(before)


def default_tile(kind: Kind, n: int, k: int, rows: int) -> Tile:
    """The tile for a weight [n, k] and a padded number of rows that nobody has measured."""
    if rows == 1:
        if k <= 1024:
            return Tile(2 if n <= 8192 else 8, 1024, 4, 4)
        return Tile(8, 512, 4, 4) if n <= 65536 else Tile(8, 1024, 4, 4)
    if kind in ("qkv", "add") or n <= 4096:
        return Tile(16 if k <= 1024 else 32, 128, 4, 4)
    return Tile(64, 128, 4, 4)
