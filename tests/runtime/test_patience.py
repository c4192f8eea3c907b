"""How long clients try to connect."""

import socket
from pathlib import Path

import pytest
from fake_text_edge import fake_launcher

from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.paths import RunDir
from pillion.runtime.patience import Patience, launcher_lives

MAY_PASS = DaemonUnavailable("nobody listens", may_pass=True)
S = 10**9


def test_pauses_grow_while_the_launcher_lives(run_dir: RunDir) -> None:
    patience = Patience([run_dir.client_socket], until_ns=10 * S)
    with fake_launcher(run_dir.client_socket):
        pauses = [patience.pause_s(MAY_PASS, 0) for _ in range(8)]
        assert pauses[:3] == [0.01, 0.02, 0.04]
        assert pauses[-1] == 0.25
        assert patience.pause_s(MAY_PASS, 10 * S - 10**8) == pytest.approx(0.1)
        with pytest.raises(DaemonUnavailable, match="nobody listens"):
            patience.pause_s(MAY_PASS, 10 * S)
    with pytest.raises(DaemonUnavailable, match="nobody listens"):
        patience.pause_s(MAY_PASS, 0)


def test_what_cannot_pass_is_not_tried_again(run_dir: RunDir) -> None:
    with (
        fake_launcher(run_dir.client_socket),
        pytest.raises(DaemonUnavailable, match="another protocol"),
    ):
        Patience([run_dir.client_socket], 10 * S).pause_s(DaemonUnavailable("another protocol"), 0)


def test_a_client_may_wait_for_the_next_daemon(run_dir: RunDir) -> None:
    patience = Patience([run_dir.client_socket], 10 * S, outlive_daemon=True)
    assert patience.pause_s(MAY_PASS, 0) == 0.01


def test_who_lives(run_dir: RunDir) -> None:
    assert not launcher_lives(run_dir)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run_dir.control_socket))
    assert not launcher_lives(run_dir)
    run_dir.control_socket.unlink()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(run_dir.control_socket))
        busy.listen(0)
        first.connect(str(run_dir.control_socket))
        assert launcher_lives(run_dir), "a full backlog is a sign of life"
    assert not launcher_lives(RunDir(Path("/" + "x" * 100)))
