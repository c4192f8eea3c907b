"""Threads that wait for each other leave their cores soon, unless the user wants it otherwise."""

import subprocess
import sys

import pytest

from pillion.actors.gpu_worker.thread_waits import SPIN_COUNT, SPINS, WAIT_POLICY, bound_spinning
from pillion.runtime.process import child_environment

LOOK = (
    "import os, sys; from pillion.actors.gpu_worker.thread_waits import bound_spinning;"
    " bound_spinning(os.environ); assert 'torch' not in sys.modules; import torch"
)


def test_the_threads_library_takes_the_bound() -> None:
    shown = subprocess.run(
        [sys.executable, "-P", "-c", LOOK],
        env=child_environment() | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{SPIN_COUNT} = '{SPINS}'" in shown.stderr


@pytest.mark.parametrize("setting", [{SPIN_COUNT: "7"}, {WAIT_POLICY: "active"}], ids=str)
def test_what_the_user_has_set_stays(setting: dict[str, str]) -> None:
    environment = dict(setting)
    bound_spinning(environment)
    assert environment == setting
