"""Choosing a device, and copies to and from it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.device import Copies, Device, Download, choose_device
from pillion.actors.gpu_worker.host_buffers import HostBuffers, SentBuffers, page_locked
from pillion.actors.gpu_worker.kept_copies import KeptCopies
from pillion.runtime.errors import ConfigError


def test_auto_is_the_cpu_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    assert choose_device("cpu") == torch.device("cpu")


def test_auto_is_the_first_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="cuda:2, but torch finds 2"):
        choose_device("cuda:2")


@pytest.mark.parametrize("setting", ["gpu", "mps", "cuda:x", ""])
def test_what_is_no_device_is_refused_by_name(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"device must be .*{setting!r}"):
        choose_device(setting)


def test_cuda_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds 0 CUDA devices"):
        choose_device("cuda")


def test_what_is_launched_goes_to_the_device_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels, events and graphs are those of a thread's current device, whichever tensors they are about."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    Device(torch.device("cpu"))
    assert not current
    Device(torch.device("cuda", 1))
    assert current == [torch.device("cuda", 1)]


def test_copies_keep_values_and_types() -> None:
    device = Device(torch.device("cpu"))
    uploaded = device.upload_int64(np.array([3, -1], dtype=np.int32))
    assert uploaded.dtype == torch.int64
    download = device.download([uploaded, torch.tensor([True])])
    assert download.is_ready()
    numbers, flags = download.wait()
    assert numbers.tolist() == [3, -1]
    assert flags.tolist() == [True]


def in_memory(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def noting(
    made: list[torch.Tensor], allocate: Callable[[int], torch.Tensor] = in_memory
) -> Callable[[int], torch.Tensor]:
    """Allocates in this way, and keeps in `made` what there was of it."""

    def note(num_bytes: int) -> torch.Tensor:
        made.append(allocate(num_bytes))
        return made[-1]

    return note


def test_a_buffer_is_used_again_by_what_fits_and_never_by_two() -> None:
    sizes: list[int] = []

    def allocate(num_bytes: int) -> torch.Tensor:
        sizes.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    buffers = HostBuffers(allocate)
    taken = [buffers.take(num_bytes) for num_bytes in (0, 256, 257, 1000)]
    assert [len(buffer) for buffer in taken] == [256, 256, 512, 1024] == sizes
    assert len({buffer.data_ptr() for buffer in taken}) == len(taken)
    buffers.give_back(taken[3])
    assert buffers.take(513) is taken[3]
    assert buffers.take(600) is not taken[3]


class Arrived:
    """In the place of torch.cuda.Event: copies on the CPU are done at once."""

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def test_arrays_stay_when_their_buffers_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Arrived)
    made: list[torch.Tensor] = []
    allocate = noting(made)
    buffers = HostBuffers(allocate)
    columns = torch.arange(20, dtype=torch.int32).reshape(4, 5)
    found = []
    for step in range(5):
        tensors = [columns + step, columns[0] % 2 == 0, torch.empty(3, 0), torch.tensor(step)]
        download = Download(tensors, Copies(tensors, None, buffers))  # type: ignore[arg-type]
        if step != 2:
            found.append((tensors, download.wait()))
    for tensors, arrays in found:
        for tensor, array in zip(tensors, arrays, strict=True):
            np.testing.assert_array_equal(array, tensor.numpy(), strict=True)
    assert len(made) == 8  # a download is dropped when the next one is there


class Copied:
    """In the place of torch.cuda.Event: a copy that is done when the test says so."""

    def __init__(self) -> None:
        self.is_done = True  # as those are that were never recorded
        self.stream: object = None

    def record(self, stream: object) -> None:
        self.is_done, self.stream = False, stream

    def query(self) -> bool:
        return self.is_done


def test_a_buffer_is_written_again_only_when_the_copy_out_of_it_is_done() -> None:
    events: list[Copied] = []

    def new_event() -> Copied:
        events.append(Copied())
        return events[-1]

    sent = SentBuffers(HostBuffers(lambda size: torch.empty(size, dtype=torch.uint8)), new_event)
    taken = []
    for _ in range(3):
        taken.append(sent.take(300))
        sent.sent(taken[-1], None)
    assert len({buffer.data_ptr() for buffer in taken}) == 3
    events[1].is_done = True  # but not the first one
    fourth = sent.take(300)
    assert all(fourth is not buffer for buffer in taken)
    sent.sent(fourth, None)
    events[0].is_done = True
    again = [sent.take(300), sent.take(300)]
    assert {id(buffer) for buffer in again} == {id(taken[0]), id(taken[1])}
    assert sent.take(300) is not taken[2]
    sent.sent(again[0], None)
    assert len(events) == 4  # they are used again too
    assert sent.take(300) is not again[0]


def test_uploads_are_behind_what_was_launched_and_keep_their_memory_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a CUDA device, with copies that are done at once but not known to be."""
    events: list[Copied] = []
    made: list[torch.Tensor] = []

    def new_event() -> Copied:
        events.append(Copied())
        return events[-1]

    allocate = noting(made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the one of {device}")
    device = Device(torch.device("cpu"))
    device.is_cuda, device._sent = True, SentBuffers(HostBuffers(allocate), new_event)
    target = torch.zeros(3, dtype=torch.int64)
    for number in range(3):
        array = np.arange(number, number + 3)
        assert device.upload(array).tolist() == array.tolist()
        device.write(target, array + 7)
        assert target.tolist() == (array + 7).tolist()
    assert len(made) == 6
    assert {event.stream for event in events} == {"the one of cpu"}
    for event in events:
        event.is_done = True
    assert device.upload_int64([5]).tolist() == [5]
    assert len(made) == 6


def test_copies_of_one_tensor_are_kept_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    allocate = noting(made)
    stream: Any = SimpleNamespace(wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Event", Arrived)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    device = Device(torch.device("cpu"))
    device._copy_stream, device._buffers = stream, HostBuffers(allocate)
    turns = torch.zeros(4, 3), torch.ones(4, 3)
    for step in range(6):
        (array,) = device.download_again(turns[step % 2]).wait()
        np.testing.assert_array_equal(array, turns[step % 2].numpy())
    assert len(made) == 2


class TestKeptCopies:
    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What the device is told, in order; copies on the CPU are done at once."""
        calls: list[str] = []

        class Event:
            def record(self, stream: str) -> None:
                calls.append(f"record on {stream}")

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                calls.append("synchronize")

        class Stream(str):
            def wait_event(self, event: Event) -> None:
                calls.append(f"{self} waits")

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: calls.append(f"to {stream}"))
        self.streams = Stream("steps"), Stream("copies")
        return calls

    def start(self, copies: KeptCopies) -> Download:
        return Download((), copies.start(*self.streams))  # type: ignore[arg-type]

    @pytest.mark.usefixtures("calls")
    def test_arrays_stay_and_a_place_is_used_again_when_its_copy_is_gone(self) -> None:
        made: list[torch.Tensor] = []
        allocate = noting(made)
        columns = torch.zeros((4, 100), dtype=torch.int32)
        copies, under_way, found = KeptCopies(columns, HostBuffers(allocate)), [], []
        for step in range(6):
            columns.fill_(step)
            under_way.append(self.start(copies))
            assert under_way[0].is_ready()
            if step == 2:
                under_way.pop()  # nobody has read it
            elif len(under_way) == 2:
                found += under_way.pop(0).wait()
        assert [array.tolist() for array in found] == [[[n] * 100] * 4 for n in (0, 1, 3, 4)]
        assert len(made) == 2

    def test_it_is_behind_what_was_launched_and_nothing_waits_but_who_reads(
        self, calls: list[str]
    ) -> None:
        download = self.start(
            KeptCopies(torch.zeros(3), HostBuffers(lambda size: torch.empty(size).byte()))
        )
        launched = ["record on steps", "copies waits", "to copies", "to steps", "record on copies"]
        assert calls == launched
        download.wait()
        assert calls == [*launched, "synchronize"]

    def test_a_copy_that_fails_leaves_the_current_stream_as_it_was(self, calls: list[str]) -> None:
        copies = KeptCopies(torch.zeros(3), HostBuffers(lambda size: torch.empty(size).byte()))
        self.start(copies)
        copies._tensor = torch.zeros(5)
        with pytest.raises(RuntimeError):
            self.start(copies)
        assert calls[-1] == "to steps"


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
def test_downloads_use_their_memory_again_and_arrays_stay_as_they_are() -> None:
    device = Device(torch.device("cuda", 0))
    made: list[torch.Tensor] = []
    allocate = noting(made, page_locked)
    device._buffers = HostBuffers(allocate)
    base = device.upload(np.arange(1000))
    arrays = []
    for step in range(50):
        download = device.download([base + step, base % 2 == 0])
        if step % 3:
            arrays.append((step, download.wait()))
    for step, (numbers, flags) in arrays:
        np.testing.assert_array_equal(numbers, np.arange(1000) + step)
        np.testing.assert_array_equal(flags, np.arange(1000) % 2 == 0)
    assert len(made) == 4  # a download is dropped when the next one is there


@pytest.mark.gpu
@needs_cuda
def test_copies_on_cuda_arrive_when_waited_for() -> None:
    device = Device(torch.device("cuda", 0))
    array = np.arange(1 << 20)
    doubled = device.upload(array) * 2
    (result,) = device.download([doubled]).wait()
    np.testing.assert_array_equal(result, array * 2)


@pytest.mark.gpu
@needs_cuda
def test_uploads_use_their_memory_again_and_arrive_as_they_were() -> None:
    device = Device(torch.device("cuda", 0))
    made: list[torch.Tensor] = []
    allocate = noting(made, page_locked)
    device._sent = SentBuffers(HostBuffers(allocate))
    target = torch.zeros(700, dtype=torch.int32, device=device.device)
    found, wanted = [], []
    for step in range(300):
        arrays = [np.arange(700, dtype=np.int32) + step, np.arange(step) % 3 == 0]
        torch.cuda.set_sync_debug_mode("error")
        device.write(target, arrays[0])
        found.append((target.clone(), device.upload(arrays[1])))
        torch.cuda.set_sync_debug_mode("default")
        wanted.append(arrays)
        if step % 50 == 49:
            torch.cuda.synchronize()
    for tensors, arrays in zip(found, wanted, strict=True):
        for tensor, array in zip(tensors, arrays, strict=True):
            np.testing.assert_array_equal(tensor.cpu().numpy(), array, strict=True)
    assert len(made) <= 150  # those of 50 steps in three sizes


@pytest.mark.gpu
@needs_cuda
def test_copies_of_one_tensor_have_what_it_held_and_use_their_memory_again() -> None:
    device = Device(torch.device("cuda", 0))
    made: list[torch.Tensor] = []
    allocate = noting(made, page_locked)
    device._buffers = HostBuffers(allocate)
    turns = [torch.zeros((4, 256), dtype=torch.int32, device=device.device) for _ in range(2)]
    stream, under_way, found = torch.cuda.current_stream(), [], []
    for step in range(50):
        turns[step % 2].fill_(step)
        under_way.append(device.download_again(turns[step % 2]))
        if len(under_way) == 2:
            found += under_way.pop(0).wait()
    assert torch.cuda.current_stream() == stream
    for step, array in enumerate(found):
        np.testing.assert_array_equal(array, np.full((4, 256), step))
    assert len(made) == 2
