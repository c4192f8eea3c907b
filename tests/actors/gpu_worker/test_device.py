"""Choosing a device, and copies to and from it."""

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.device import Device, choose_device
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


def test_copies_keep_values_and_types() -> None:
    device = Device(torch.device("cpu"))
    uploaded = device.upload_int64(np.array([3, -1], dtype=np.int32))
    assert uploaded.dtype == torch.int64
    download = device.download([uploaded, torch.tensor([True])])
    assert download.is_ready()
    numbers, flags = download.wait()
    assert numbers.tolist() == [3, -1]
    assert flags.tolist() == [True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_on_cuda_arrive_when_waited_for() -> None:
    device = Device(torch.device("cuda", 0))
    array = np.arange(1 << 20)
    doubled = device.upload(array) * 2
    (result,) = device.download([doubled]).wait()
    np.testing.assert_array_equal(result, array * 2)
