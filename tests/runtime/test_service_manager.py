"""What a service manager hears, and when it is left alone."""

import logging
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion.runtime.errors import ConfigError
from pillion.runtime.service_manager import ServiceManager
from pillion.runtime.service_variables import SERVICE_VARIABLES, without_service_variables


@pytest.fixture(params=["path", "abstract"])
def heard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A NOTIFY_SOCKET and the socket at its other end."""
    name = f"@pillion-{uuid.uuid4().hex}" if request.param == "abstract" else str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0"))
        listening.settimeout(2)
        yield name, listening


def test_each_word_is_one_datagram(heard: tuple[str, socket.socket]) -> None:
    name, listening = heard
    manager = ServiceManager.of({"NOTIFY_SOCKET": name}, 7)
    manager.starting("starting\n  a model", 2.5)
    manager.ready()
    manager.alive()
    manager.status("serving")
    manager.stopping("SIGTERM", 35)
    words = [listening.recv(4096).decode() for _ in range(5)]
    assert words == [
        "STATUS=starting a model\nEXTEND_TIMEOUT_USEC=2500000",
        "READY=1",
        "WATCHDOG=1",
        "STATUS=serving",
        "STOPPING=1\nSTATUS=SIGTERM\nEXTEND_TIMEOUT_USEC=35000000",
    ]


@pytest.mark.parametrize(
    ("variables", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None),
    ],
)
def test_signs_of_life_are_due_at_half_of_the_limit(
    variables: dict[str, str], interval_s: float | None
) -> None:
    manager = ServiceManager.of({"NOTIFY_SOCKET": "/run/n", **variables}, 7)
    assert manager.watchdog_interval_s == interval_s
    assert ServiceManager.of(variables, 7).watchdog_interval_s is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NOTIFY_SOCKET": "run/n"}, "NOTIFY_SOCKET must be an absolute path or @NAME"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC must be a number"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, "WATCHDOG_USEC must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServiceManager.of(variables, 7)


def test_a_manager_that_is_gone_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, 7).ready()
    assert "cannot tell the service manager READY=1" in caplog.text


def test_children_do_not_hear_of_it() -> None:
    environment = {**dict.fromkeys(SERVICE_VARIABLES, "1"), "PATH": "/bin"}
    assert without_service_variables(environment) == {"PATH": "/bin"}
