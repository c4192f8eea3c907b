"""What /proc says about processes."""

import os
import subprocess
import sys
import time

from pillion.runtime.proc_files import age_s, cpu_seconds, rss_bytes


def test_this_process() -> None:
    assert 1 << 20 < rss_bytes(os.getpid()) < 1 << 36
    assert abs(cpu_seconds(os.getpid()) - time.process_time()) < 0.1
    assert 0 < age_s(os.getpid()) < 24 * 3600


def test_a_process_with_an_awkward_name() -> None:
    script = (
        "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, b') (R 1 2', 0, 0, 0)\n"
        # The kernel counts in ticks, and may not have counted one for a short start.
        "while time.process_time() < 0.1: pass\n"
        "print('named', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0 < age_s(process.pid) < 60
        assert 0 < cpu_seconds(process.pid) < 60


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert (rss_bytes(process.pid), cpu_seconds(process.pid), age_s(process.pid)) == (0, 0.0, 0.0)
