"""Page-locked host memory for what comes from the device, and for what goes there."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

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
        # also those that an error kept from being given back
        self._all: list[torch.Tensor] = []
        # size in bytes -> those that nobody uses
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes or more] uint8; what it holds means nothing."""
        size = _LEAST_BYTES
        while size < num_bytes:
            size *= 2
        free = self._free[size]
        if free:
            return free.pop()
        self._all.append(self._allocate(size))
        return self._all[-1]

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nobody reads the buffer any more. A copy into it may still run if those that follow are ordered behind it."""
        self._free[len(buffer)].append(buffer)


class SentBuffers:
    """Buffers out of which copies to the device run, all on one stream; they are used again when those are done."""

    def __init__(
        self,
        buffers: HostBuffers,
        new_event: Callable[[], Any] = torch.cuda.Event,
    ) -> None:
        """Nobody else uses `buffers`; `new_event` makes what `torch.cuda.Event` makes."""
        self._buffers = buffers
        self._new_event = new_event
        # the oldest first, with what is recorded behind the copy
        self._sent: deque[tuple[torch.Tensor, Any]] = deque()
        self._events: list[Any] = []

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes or more] uint8, that nothing reads. Never waits: what is still read stays as it is."""
        while self._sent and self._sent[0][1].query():
            buffer, event = self._sent.popleft()
            self._buffers.give_back(buffer)
            self._events.append(event)
        return self._buffers.take(num_bytes)

    def sent(self, buffer: torch.Tensor, stream: Any) -> None:
        """The last copy out of this buffer was launched."""
        event = self._events.pop() if self._events else self._new_event()
        event.record(stream)
        self._sent.append((buffer, event))
