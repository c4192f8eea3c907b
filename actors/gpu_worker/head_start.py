"""What a start on a CUDA device waits for outside of Python, begun while Python imports torch.

The driver makes the device's context, and Triton hashes its compiler, some 400 MB, before it looks for the first kernel
in its cache. Both let go of Python's lock. Nothing here imports torch.
"""

import ctypes
import gc
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DRIVER: Final = Path("/dev/nvidiactl")
_DRIVER_LIBRARY: Final = "libcuda.so.1"


@contextmanager
def head_start(device: str) -> Iterator[None]:
    """Imports inside take place beside all this, which is done at their end. `device` as in the configuration.

    The garbage collector rests meanwhile: it would look through everything that is imported, several times, and finds
    nothing. What was imported it need not look at later either.
    """
    jobs: list[Callable[[], None]] = []
    if device != "cpu" and DRIVER.exists():
        index = int(device.partition(":")[2] or 0)
        jobs = [lambda: _open_context(index), _hash_compiler]
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        for thread in threads:
            thread.join()


def _open_context(index: int) -> None:
    """The context that torch will use; whatever is wrong with the device torch will find out and say."""
    try:
        driver = ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _hash_compiler() -> None:
    """Triton keeps the result. A version that does this elsewhere does it later."""
    if importlib.util.find_spec("triton") is None:
        return
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return
    triton_key()
