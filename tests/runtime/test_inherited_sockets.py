"""Which descriptors a daemon takes for its own, and which it refuses."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion.runtime import inherited_sockets as module
from pillion.runtime.errors import ConfigError
from pillion.runtime.inherited_sockets import address_of, inherited_sockets


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A free number that the protocol's first descriptor has in this test; pytest uses 3 itself."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    monkeypatch.setattr(module, "FIRST_DESCRIPTOR", descriptor)
    yield descriptor
    os.close(descriptor)


def variables(count: int | str = 1, pid: int = 7, names: str = "http") -> dict[str, str]:
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names}


def test_what_is_meant_for_another_process_is_left_alone(first: int) -> None:
    assert inherited_sockets({}, 7) == ()
    assert inherited_sockets(variables(pid=8), 7) == ()
    assert inherited_sockets(variables(0), 7) == ()


def test_a_listening_socket_is_taken_and_kept_from_children(first: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.dup2(listening.fileno(), first)
        assert os.get_inheritable(first)
        assert inherited_sockets(variables(), 7) == (first,)
        assert not os.get_inheritable(first)


def test_what_does_not_listen_is_refused_by_its_name(first: int) -> None:
    with pytest.raises(ConfigError, match=rf"descriptor {first} \(http\) is no socket"):
        inherited_sockets(variables(), 7)
    with socket.socket() as idle:
        os.dup2(idle.fileno(), first)
        with pytest.raises(ConfigError, match=rf"{first} \(unnamed\) does not listen .*Accept=no"):
            inherited_sockets(variables(names=""), 7)
    with pytest.raises(ConfigError, match="LISTEN_FDS must be a number of descriptors, got 'all'"):
        inherited_sockets(variables("all"), 7)


def test_addresses_are_shown_as_clients_use_them(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        assert address_of(unix) == path
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{path}")
        assert address_of(abstract) == f"@{path}"
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        assert address_of(tcp) == f"http://127.0.0.1:{tcp.getsockname()[1]}"
