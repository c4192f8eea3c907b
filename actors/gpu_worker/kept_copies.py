"""A device tensor that stays where it is, and is copied to the host step after step."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.host_buffers import HostBuffers


class KeptCopies:
    """Of one tensor: host memory, views of it and events are made once for each copy that is under way."""

    def __init__(self, tensor: torch.Tensor, buffers: HostBuffers) -> None:
        """Out of `buffers`, which get nothing back."""
        self._tensor = tensor
        self._buffers = buffers
        self._free: list[_Place] = []

    def start(self, stream: torch.cuda.Stream, copy_stream: torch.cuda.Stream) -> "KeptCopy":
        """Copies what is there behind all that was launched on `stream`, the current one.

        Nothing waits here. Every copy of the tensor has the same copy_stream.
        """
        place = self._free.pop() if self._free else _Place(self._tensor, self._buffers)
        copy = KeptCopy(place, self._free)
        place.computed.record(stream)
        copy_stream.wait_event(place.computed)
        # A `with` would ask for the current stream once more and compare devices.
        torch.cuda.set_stream(copy_stream)
        try:
            place.host.copy_(self._tensor, non_blocking=True)
        finally:
            torch.cuda.set_stream(stream)
        place.arrived.record(copy_stream)
        return copy


class _Place:
    """Where one copy arrives, and another one when nobody reads this one any more."""

    def __init__(self, tensor: torch.Tensor, buffers: HostBuffers) -> None:
        buffer = buffers.take(tensor.nbytes)
        self.host = buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self.host_np: npt.NDArray[Any] = self.host.numpy()
        self.computed: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]


class KeptCopy:
    """A copy under way. Its place is free as soon as this is gone."""

    def __init__(self, place: _Place, free: list[_Place]) -> None:
        self.arrived = place.arrived
        self._place = place
        self._free = free

    def arrays(self) -> list[npt.NDArray[np.generic]]:
        """What has arrived; it stays as it is."""
        return [self._place.host_np.copy()]

    def __del__(self) -> None:
        self._free.append(self._place)
