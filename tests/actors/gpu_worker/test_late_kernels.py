"""What is compiled after the start is told."""

import logging

import pytest

triton = pytest.importorskip("triton")

from pillion.actors.gpu_worker.late_kernels import warn_of_late_kernels


class Source:
    name = "some_kernel"


def test_a_kernel_that_is_compiled_late_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    warn_of_late_kernels()
    listener = triton.knobs.compilation.listener
    with caplog.at_level(logging.WARNING):
        listener(src=Source(), metadata={}, metadata_group={}, times=None, cache_hit=True)
        assert not caplog.messages
        listener(src=Source(), metadata={}, metadata_group={}, times=None, cache_hit=False)
    assert ["some_kernel" in message for message in caplog.messages] == [True]

