"""Page-locked host memory for what comes from the device."""

from collections import defaultdict
from collections.abc import Callable
from typing import Final

import torch

_LEAST_BYTES: Final = 256


def page_locked(num_bytes: int) -> torch.Tensor:
    """[num_bytes] uint8, not initialized."""
    # A tensor made in inference mode could be written to in that mode alone.
    with torch.inference_mode(mode=False):
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class HostBuffers:
    """Buffers that are used again and never freed.

    Where an error has broken the device, torch ends the process by SIGABRT if page-locked memory is freed that a copy
    has used, and the worker still has to say what has happened.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor] = page_locked) -> None:
        """`allocate` makes a buffer [num_bytes] uint8."""
        self._allocate = allocate
        # size in bytes -> those that nobody uses
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes or more] uint8; what it holds means nothing."""
        size = _LEAST_BYTES
        while size < num_bytes:
            size *= 2
        free = self._free[size]
        return free.pop() if free else self._allocate(size)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nobody reads the buffer any more. A copy into it may still run if those that follow are ordered behind it."""
        self._free[len(buffer)].append(buffer)
