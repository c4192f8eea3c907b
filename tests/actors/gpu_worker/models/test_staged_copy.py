"""Weights that go through page-locked memory, piece by piece."""

import threading

import pytest
import torch

from pillion.actors.gpu_worker.models import staged_copy
from pillion.actors.gpu_worker.models.staged_copy import _PIECE_BYTES, WeightCopier, copy_weight

PIECE_BYTES = 64


class Event:
    """Of a stream that copies only when it is waited for."""

    waiting: list[tuple[torch.Tensor, torch.Tensor]]

    def __init__(self) -> None:
        self.num_due = 0

    def record(self) -> None:
        self.num_due = len(self.waiting)

    def synchronize(self) -> None:
        for out, piece in self.waiting[: self.num_due]:
            out.copy_(piece)
        del self.waiting[: self.num_due]
        self.num_due = 0


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    """Copies that don't block are done when an event behind them is waited for."""
    copy = torch.Tensor.copy_
    Event.waiting = []

    def copy_late(
        self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        if non_blocking:
            Event.waiting.append((self, source))
            return self
        return copy(self, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_late)
    return Event


@pytest.mark.parametrize("num_numbers", [1, 31, 32, 33, 64, 96, 500])
def test_no_piece_is_filled_before_it_was_copied(num_numbers: int, late: type[Event]) -> None:
    copier = WeightCopier(
        lambda size: torch.full((size,), 255, dtype=torch.uint8), late, PIECE_BYTES
    )
    for _ in range(3):
        source = torch.randn(num_numbers).bfloat16()
        out = torch.zeros_like(source)
        copier.copy(source, out)
        for event in copier._copied:
            event.synchronize()
        assert torch.equal(out, source)


class OnCard(torch.Tensor):
    """Says that it is on a CUDA device."""

    is_cuda = True  # type: ignore[assignment]


def test_only_dense_tensors_of_one_type_are_copied_as_bytes(
    late: type[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[torch.Tensor] = []

    class Copier(WeightCopier):
        def __init__(self) -> None:
            super().__init__(lambda size: torch.empty(size).byte(), late, PIECE_BYTES)

        def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
            copied.append(source)
            super().copy(source, out)
            for event in self._copied:
                event.synchronize()

    monkeypatch.setattr(staged_copy, "WeightCopier", Copier)
    monkeypatch.setattr(staged_copy, "_PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(staged_copy, "_of_thread", threading.local())
    dense, turned = torch.randn(8, 8), torch.randn(8, 8).t()
    for source, out in (
        (dense, torch.empty(8, 8)),
        (dense, torch.empty(8, 8, dtype=torch.bfloat16)),
        (turned, torch.empty(8, 8)),
        (dense, torch.empty(8, 8).t()),
        (dense[0], torch.empty(8)),
    ):
        copy_weight(source, out.as_subclass(OnCard))
        assert torch.equal(out, source.to(out.dtype))
    assert len(copied) == 1
    assert copied[0] is dense


def test_what_cannot_go_through_pieces_is_copied_as_ever() -> None:
    for source in (torch.randn(5, 7), torch.randn(7, 5).t()):
        out = torch.empty(5, 7, dtype=torch.bfloat16)
        copy_weight(source, out)
        assert torch.equal(out, source.bfloat16())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_bytes", [10, _PIECE_BYTES, 5 * _PIECE_BYTES + 2])
def test_weights_arrive_on_a_device(num_bytes: int) -> None:
    for _ in range(3):
        source = torch.randn(num_bytes // 2).bfloat16()
        out = torch.zeros(source.shape, dtype=source.dtype, device="cuda")
        copy_weight(source, out)
        assert torch.equal(out.cpu(), source)
