"""Weights from the page cache to a CUDA device, through page-locked memory, which the copy engine reads by itself."""

import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from pillion.actors.gpu_worker.host_buffers import page_locked

# Large enough that a copy's own cost is lost in it, small enough to be page-locked in no time.
_PIECE_BYTES: Final = 8 << 20
_NUM_PIECES: Final = 2


class WeightCopier:
    """One thread's page-locked memory: a piece is filled while the one before is copied."""

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor] = page_locked,
        make_event: Callable[[], Any] = torch.cuda.Event,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        """`allocate` makes memory [num_bytes] uint8; `make_event` what a stream reaches."""
        self._pieces = [allocate(piece_bytes) for _ in range(_NUM_PIECES)]
        self._copied = [make_event() for _ in range(_NUM_PIECES)]
        self._turn = 0

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """Both dense, of one type and size. Writes: out, ordered before what is launched next on the stream."""
        source_bytes, out_bytes = _bytes_of(source), _bytes_of(out)
        size = len(self._pieces[0])
        for start in range(0, len(source_bytes), size):
            part = source_bytes[start : start + size]
            piece, copied = self._pieces[self._turn][: len(part)], self._copied[self._turn]
            self._turn = (self._turn + 1) % _NUM_PIECES
            copied.synchronize()
            piece.copy_(part)
            out_bytes[start : start + len(part)].copy_(piece, non_blocking=True)
            copied.record()


_of_thread = threading.local()


def copy_weight(source: torch.Tensor, out: torch.Tensor) -> None:
    """A tensor of the host's memory to any device, converted on the way. Writes: out."""
    is_same = source.dtype == out.dtype and source.is_contiguous() and out.is_contiguous()
    if not out.is_cuda or not is_same or source.nbytes < _PIECE_BYTES:
        out.copy_(source)
        return
    if not hasattr(_of_thread, "copier"):
        _of_thread.copier = WeightCopier()
    _of_thread.copier.copy(source, out)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """[num_bytes] uint8, the same memory."""
    return tensor.view(-1).view(torch.uint8)
