"""Signs of life: a page of memory in which each actor stamps its progress, and which the launcher reads.

A stamp costs a store, so the loops write one each turn. The page has no name anywhere: it goes with its last holder.
"""

import mmap
import os
from dataclasses import dataclass
from typing import Final, Self

from pillion.runtime.clock import now_ns

_LINE_WORDS: Final = 8  # 64 bytes, a cache line of its own for each actor
_WORD_BYTES: Final = 8
_NUM_WORDS: Final = 3
_STAMP, _IN_STEP, _HAS_WORKED = range(_NUM_WORDS)


@dataclass(frozen=True, slots=True)
class Sign:
    """The latest that an actor has shown of itself."""

    stamp_ns: int  # 0: nothing yet in this life
    in_step: bool  # it runs a step of the model, which may take long
    has_worked: bool = False  # this life has done what it is for


class ProgressPage:
    """The launcher's side: one line for each actor."""

    def __init__(self, num_lines: int) -> None:
        num_bytes = num_lines * _LINE_WORDS * _WORD_BYTES
        self.fd = os.memfd_create("pillion-progress")
        os.ftruncate(self.fd, num_bytes)
        self._words = memoryview(mmap.mmap(self.fd, num_bytes)).cast("q")

    def read(self, line: int) -> Sign:
        """What the actor of this line has written."""
        first = line * _LINE_WORDS
        stamp, in_step, has_worked = self._words[first : first + _NUM_WORDS]
        return Sign(stamp, bool(in_step), bool(has_worked))

    def clear(self, line: int) -> None:
        """A new life begins in this line."""
        first = line * _LINE_WORDS
        for word in range(first, first + _NUM_WORDS):
            self._words[word] = 0

    def close(self) -> None:
        """Lets go of the page."""
        os.close(self.fd)


class Progress:
    """An actor's side: its own line."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    @classmethod
    def private(cls) -> Self:
        """A line that nobody reads."""
        return cls(memoryview(bytearray(_LINE_WORDS * _WORD_BYTES)).cast("q"))

    @classmethod
    def open(cls, descriptor: int, line: int) -> Self:
        """A line of the page behind this descriptor, which is closed."""
        words = memoryview(mmap.mmap(descriptor, 0)).cast("q")
        os.close(descriptor)
        return cls(words[line * _LINE_WORDS : (line + 1) * _LINE_WORDS])

    def stamp_turn(self, now: int, has_worked: bool = False) -> None:
        """The loop has come round."""
        self._words[_HAS_WORKED] = has_worked
        self._words[_STAMP] = now
        self._words[_IN_STEP] = 0

    def stamp_layer(self) -> None:
        """A step of the model has come to its next layer; until the loop comes round, a stamp may take long."""
        self._words[_STAMP] = now_ns()
        self._words[_IN_STEP] = 1
