"""The device: which one, how its threads run, and how bytes get there and back without a wait on the step path."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.host_buffers import HostBuffers, SentBuffers
from pillion.actors.gpu_worker.kept_copies import KeptCopies, KeptCopy
from pillion.runtime.errors import ConfigError


def choose_device(setting: str) -> torch.device:
    """The device that the configuration's `device` names. Raises ConfigError if it isn't there."""
    if setting == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(setting)
    except RuntimeError as error:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {setting!r}") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {setting!r}")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= num_devices:
        raise ConfigError(f"device is {setting}, but torch finds {num_devices} CUDA devices here")
    return torch.device("cuda", index)


def available_cpu_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Download:
    """Device tensors on their way to the host. The tensors are kept alive until they have arrived."""

    def __init__(
        self, tensors: Sequence[torch.Tensor], copies: "Copies | KeptCopy | None" = None
    ) -> None:
        """Without copies the tensors are on the host already."""
        self._tensors = tensors
        self._copies = copies

    def is_ready(self) -> bool:
        """Whether `wait` won't have to wait."""
        return self._copies is None or bool(self._copies.arrived.query())

    def wait(self) -> list[npt.NDArray[Any]]:
        """The arrays, as soon as the device has made and copied them."""
        if self._copies is None:
            return [tensor.numpy() for tensor in self._tensors]
        self._copies.arrived.synchronize()
        self._tensors = ()
        return self._copies.arrays()


class Copies:
    """Of tensors, in buffers that others may use as soon as this is gone."""

    def __init__(
        self, tensors: Sequence[torch.Tensor], stream: torch.cuda.Stream, buffers: HostBuffers
    ) -> None:
        self._buffers = buffers
        self._taken: list[torch.Tensor] = []
        self._taken += [buffers.take(tensor.nbytes) for tensor in tensors]
        # those that were copied, on the host
        self.hosts = [
            buffer[: tensor.nbytes]
            .view(tensor.dtype)
            .view(tensor.shape)
            .copy_(tensor, non_blocking=True)
            for buffer, tensor in zip(self._taken, tensors, strict=True)
        ]
        self.arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.arrived.record(stream)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """What has arrived; it stays as it is."""
        return [host.numpy().copy() for host in self.hosts]

    def __del__(self) -> None:
        for buffer in self._taken:
            self._buffers.give_back(buffer)


def make_current(device: torch.device) -> None:
    """What this thread launches goes to this device, if it is a CUDA device; also events and Triton's kernels."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


class Device:
    """Copies to and from one device, the current one of the thread that makes this."""

    def __init__(self, device: torch.device) -> None:
        make_current(device)
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._copy_stream = torch.cuda.Stream(device) if self.is_cuda else None  # type: ignore[no-untyped-call]
        self._buffers = HostBuffers()
        self._sent = SentBuffers(HostBuffers())
        self._kept: dict[int, KeptCopies] = {}  # under the id of the tensor, which lives with it

    def is_lost(self) -> bool:
        """Whether an error has broken the device's context, for good. Waits for all that was launched."""
        if not self.is_cuda:
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array on the device, ordered before what is launched next.

        On the CPU the tensor is the array: the caller doesn't change it afterwards.
        """
        tensor = torch.from_numpy(array)
        if not self.is_cuda:
            return tensor
        return self._send(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device))

    def write(self, tensor: torch.Tensor, array: npt.NDArray[Any]) -> None:
        """Fills a device tensor of the array's shape and type, ordered as `upload`."""
        source = torch.from_numpy(array)
        if self.is_cuda:
            self._send(source, tensor)
        else:
            tensor.copy_(source)

    def _send(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Fills the target on the device, behind what was launched before."""
        buffer = self._sent.take(source.nbytes)
        staged = buffer[: source.nbytes].view(source.dtype).view(source.shape).copy_(source)
        target.copy_(staged, non_blocking=True)
        self._sent.sent(buffer, torch.cuda.current_stream(self.device))
        return target

    def upload_int64(self, values: Sequence[int] | npt.NDArray[Any]) -> torch.Tensor:
        """A new int64 tensor, [len(values)]."""
        return self.upload(np.array(values, dtype=np.int64))

    def download(self, tensors: Sequence[torch.Tensor]) -> Download:
        """Starts a copy to the host behind everything launched so far; nothing waits here."""
        if self._copy_stream is None:
            return Download(tensors)
        self._copy_stream.wait_stream(torch.cuda.current_stream(self.device))
        # The buffers' copies are all on this stream, one behind the other.
        with torch.cuda.stream(self._copy_stream):
            return Download(tensors, Copies(tensors, self._copy_stream, self._buffers))

    def download_again(self, tensor: torch.Tensor) -> Download:
        """As `download`, in less time, of a tensor that is never freed: once for each step that writes it."""
        if self._copy_stream is None:
            return Download([tensor])
        copies = self._kept.get(id(tensor))
        if copies is None:
            copies = self._kept[id(tensor)] = KeptCopies(tensor, self._buffers)
        return Download((), copies.start(torch.cuda.current_stream(self.device), self._copy_stream))
