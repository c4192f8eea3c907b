"""What is done beside the imports of a start."""

import gc
from pathlib import Path
from typing import Any

import pytest

from pillion.actors.gpu_worker import head_start as module
from pillion.actors.gpu_worker.head_start import head_start


class Driver:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def cuInit(self, flags: int) -> int:
        self.calls.append(("init", flags))
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        self.calls.append(("device", index))
        device._obj.value = 40 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.calls.append(("context", device.value))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    """A machine with devices."""
    driver = Driver()
    monkeypatch.setattr(module, "DRIVER", tmp_path)
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: driver)
    return driver


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_the_device_gets_its_context_and_triton_its_hash(
    driver: Driver, device: str, index: int
) -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    cache.triton_key.cache_clear()
    with head_start(device):
        pass
    assert driver.calls == [("init", 0), ("device", index), ("context", 40 + index)]
    assert cache.triton_key.cache_info().currsize == 1


def test_nothing_is_done_for_a_cpu(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with head_start("cpu"):
        pass
    monkeypatch.setattr(module, "DRIVER", tmp_path / "none")
    with head_start("auto"):
        pass
    assert driver.calls == []


def test_a_driver_that_is_missing_or_refuses_is_left_to_torch(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_hash_compiler", lambda: None)
    monkeypatch.setattr(driver, "cuInit", lambda flags: 100)
    with head_start("cuda"):
        pass
    assert driver.calls == []

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", missing)
    with head_start("cuda"):
        pass


def test_the_collector_rests_only_meanwhile() -> None:
    with head_start("cpu"):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), head_start("cpu"):
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.unfreeze()
