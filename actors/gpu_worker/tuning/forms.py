"""The forms that are worth trying for a product: what won for the shapes that were measured, cut for this one."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from pillion.kernels.fused_linear.tiles import MEASURED, Choice, Kind, WideTile, choose_untuned

_MOST_CHOICES: Final = 8
# What a program takes of its multiprocessor's shared memory besides its tiles.
_OVERHEAD_BYTES: Final = 2 << 10
_WARPS_OF_A_MULTIPROCESSOR: Final = 64
# Programs for each multiprocessor that together read about as fast as the memory gives.
_ENOUGH: Final = 0.7
# Bytes of each row of a weight that are asked for ahead.
_AHEAD: Final = (0, 512, 2048)
# Of 16 bits each: 16 bytes.
_ALIGNED_NUMBERS: Final = 8
# Tiles that go untouched to the tensor cores: see `pillion.kernels.fused_linear`.
_WIDE_CAPABILITY: Final = (9, 0)
_WIDE_SHARED_BYTES: Final = 227 << 10


class Card(NamedTuple):
    """What there is to know of a CUDA device here."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int  # that a program may have
    cache_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> "Card | None":
        """None if it is no CUDA device."""
        if device.type != "cuda":
            return None
        found: Any = torch.cuda.get_device_properties(device)
        return cls(
            found.name,
            (found.major, found.minor),
            found.multi_processor_count,
            found.shared_memory_per_block_optin,
            found.L2_cache_size,
        )

    @property
    def runs_wide(self) -> bool:
        """Whether it has what a WideTile needs."""
        return self.capability >= _WIDE_CAPABILITY and self.shared_bytes >= _WIDE_SHARED_BYTES


class Form(NamedTuple):
    """A choice, and whether the residual stream comes, or is left, with its `Scaled`."""

    choice: Choice
    scaled: bool


def forms_of(
    kind: Kind, n: int, k: int, rows: int, card: Card, *, head_dim: int, is_bfloat16: bool
) -> list[Form]:
    """For a weight [n, k] and a padded number of rows: first what runs untuned, always the library's product."""
    found: dict[Choice, Choice] = {}
    untuned = choose_untuned(kind, n, k, rows)
    if not isinstance(untuned, WideTile) or card.runs_wide:
        found[kernel_of(untuned)] = untuned
    for choice in (None, *_winners(kind, n, k, rows)):
        for cut in _cut(choice, kind, n, k, rows, card, head_dim):
            found.setdefault(kernel_of(cut), cut)
    choices = list(found.values())[:_MOST_CHOICES]
    return [form for choice in choices for form in _uses(kind, choice, is_bfloat16)]


def kernel_of(choice: Choice) -> Choice:
    """Equal for those that have a compiled kernel in common, for the same product."""
    if isinstance(choice, WideTile):
        return choice._replace(prefetch_bytes=0, programs=min(choice.programs, 1))
    return None if choice is None else choice._replace(prefetch_bytes=0)


def ahead(choice: Choice, k: int) -> list[Choice]:
    """The same, asking for more or less of the weight ahead, which needs no other kernel."""
    if choice is None or not _is_aligned(k):
        return [choice]
    return [choice._replace(prefetch_bytes=amount) for amount in _AHEAD if amount <= 2 * k]


def _is_aligned(k: int) -> bool:
    """Whether the rows of a weight begin where the copy engine can, which also fetches what is asked for ahead."""
    return k % _ALIGNED_NUMBERS == 0


def _uses(kind: Kind, choice: Choice, is_bfloat16: bool) -> list[Form]:
    """A sum is left scaled by who can; a product behind a norm takes it so if it can, and without at some cost."""
    if kind == "head":
        return [Form(choice, False)]
    if kind == "add":
        return [Form(choice, isinstance(choice, WideTile))]
    takes = isinstance(choice, WideTile) or (choice is None and is_bfloat16)
    return [Form(choice, False), *([Form(choice, True)] if takes else [])]


def _winners(kind: Kind, n: int, k: int, rows: int) -> list[Choice]:
    """What won elsewhere for as many rows; that of the weight most like this one first."""

    def distance(key: tuple[Kind, int, int]) -> float:
        return abs(math.log(key[1] / n)) + abs(math.log(key[2] / k))

    alike = sorted((key for key in MEASURED if key[0] == kind), key=distance)
    return [MEASURED[key][rows] for key in alike if rows in MEASURED[key]]


def _cut(
    choice: Choice, kind: Kind, n: int, k: int, rows: int, card: Card, head_dim: int
) -> Iterator[Choice]:
    """A choice as it suits this product: nothing if it can't."""
    if not isinstance(choice, WideTile):
        yield choice if choice is None or _is_aligned(k) else choice._replace(prefetch_bytes=0)
        return
    if not _is_aligned(k) or (kind == "qkv" and not choice.cuts_heads(head_dim)):
        return
    is_part = kind == "qkv" and choice.block_n < head_dim
    width = choice.block_n * (2 if kind == "gated" or is_part else 1)
    tile_bytes = (width + choice.block_rows) * choice.block_k * 2
    program_bytes = choice.stages * tile_bytes + _OVERHEAD_BYTES
    if not card.runs_wide or program_bytes > card.shared_bytes:
        return
    resident = min(
        card.shared_bytes // program_bytes, _WARPS_OF_A_MULTIPROCESSOR // choice.warps // 2
    )
    num_tiles = -(-n // width) * -(-rows // choice.block_rows)
    slots = resident * card.multiprocessors
    if choice.programs > 0:
        yield choice._replace(programs=max(1, min(slots, num_tiles * -(-k // choice.block_k) // 2)))
        return
    for splits in [1] if kind == "head" else _splits(num_tiles, k, choice.block_k, slots, card):
        yield choice._replace(splits=splits)


def _splits(num_tiles: int, k: int, block_k: int, slots: int, card: Card) -> list[int]:
    """Up to two: enough programs without a second round; where K is too short for that, what it gives."""
    enough = _ENOUGH * card.multiprocessors
    possible = [splits for splits in (1, 2, 4, 8) if splits == 1 or k >= 2 * splits * block_k]
    fitting = [splits for splits in possible if enough <= num_tiles * splits <= slots]
    if fitting:
        return fitting[:2]
    if num_tiles > slots:
        return [1]
    return [splits for splits in possible if num_tiles * splits < enough][-2:]
