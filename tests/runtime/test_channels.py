"""ZeroMQ channels between sockets, threads and processes."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from pillion.messages.control import Drain, EngineFailed, Shutdown
from pillion.runtime.channels import Inbox, Outbox, Post
from pillion.runtime.clock import NS_PER_MS, NS_PER_S, now_ns
from pillion.runtime.errors import ConfigError, InvariantBroken
from pillion.runtime.paths import RunDir
from pillion.runtime.process import child_environment

UNION = Drain | Shutdown | EngineFailed


@pytest.fixture
def inbox(run_dir: RunDir) -> Iterator[Inbox[Any]]:
    inbox: Inbox[Any] = Inbox.bind(run_dir.inbox("a"), UNION)
    yield inbox
    inbox.close()


def test_messages_arrive_in_order(run_dir: RunDir, inbox: Inbox[Any]) -> None:
    post = Post(run_dir)
    for number in range(100):
        post.send("a", Drain(deadline_ns=number))
    received = [inbox.receive(NS_PER_S) for _ in range(100)]
    assert received == [Drain(deadline_ns=number) for number in range(100)]
    assert inbox.receive(0) is None
    assert inbox.drain() == []
    post.close()


def test_an_empty_inbox_costs_no_exception(
    inbox: Inbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq.Again, "__init__", None)
    assert inbox.drain() == []


def test_receive_waits_as_long_as_it_is_told(inbox: Inbox[Any]) -> None:
    began = now_ns()
    assert inbox.receive(20 * NS_PER_MS) is None
    assert 20 * NS_PER_MS <= now_ns() - began < NS_PER_S
    began = now_ns()
    assert inbox.receive(-5) is None
    assert now_ns() - began < 20 * NS_PER_MS


def test_a_deadline_beyond_what_the_system_can_wait_for_is_no_error(
    run_dir: RunDir, inbox: Inbox[Any]
) -> None:
    post = Post(run_dir)
    post.send("a", Shutdown())
    assert inbox.receive(2**62) == Shutdown()
    post.close()


def test_sends_do_not_wait_for_a_reader_and_nothing_is_dropped(run_dir: RunDir) -> None:
    outbox = Outbox.connect(run_dir.inbox("late"))
    payload = EngineFailed(message="x" * 1000)
    slowest = 0
    for _ in range(20_000):
        began = now_ns()
        outbox.send(payload)
        slowest = max(slowest, now_ns() - began)
    assert slowest < NS_PER_S
    inbox: Inbox[Any] = Inbox.bind(run_dir.inbox("late"), UNION)
    for _ in range(20_000):
        assert inbox.receive(5 * NS_PER_S) == payload
    outbox.close()
    inbox.close()


def test_the_next_life_of_a_reader_gets_what_is_meant_for_it_alone(run_dir: RunDir) -> None:
    post = Post(run_dir, {"a": 3})
    for life in range(3, 6):
        assert post.is_newer("a", life) == (life > 3)
        post.follow("a", life)
        inbox: Inbox[Any] = Inbox.bind(run_dir.inbox("a", life), UNION)
        post.send("a", Drain(deadline_ns=life))
        assert inbox.receive(5 * NS_PER_S) == Drain(deadline_ns=life)
        inbox.close()
        assert not run_dir.inbox("a", life).exists()
        post.send("a", Shutdown())  # nobody will ever read it
    assert not post.is_newer("a", 4)
    post.close()


@pytest.mark.parametrize(
    "garbage", [b"", b"\xc1", b"\x91\xa4Nope", b"\x92\xa8Shutdown", b"\x93" * 9]
)
def test_a_malformed_frame_is_a_broken_invariant(
    run_dir: RunDir, inbox: Inbox[Any], garbage: bytes
) -> None:
    outbox = Outbox.connect(run_dir.inbox("a"))
    outbox.send_bytes(garbage)
    with pytest.raises(InvariantBroken, match=rf"frame of {len(garbage)} bytes in a.1.ipc"):
        inbox.receive(5 * NS_PER_S)
    outbox.close()


def test_binding_replaces_the_dead_and_refuses_the_rest(run_dir: RunDir, inbox: Inbox[Any]) -> None:
    with pytest.raises(ConfigError, match="in use by pid"):
        Inbox.bind(run_dir.inbox("a"), UNION)
    stale = run_dir.inbox("stale")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(stale))
    Inbox.bind(stale, UNION).close()
    regular = run_dir.inbox("regular")
    regular.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        Inbox.bind(regular, UNION)
    assert regular.read_text() == "precious"
    for act in (lambda path: Inbox.bind(path, UNION), Outbox.connect):
        with pytest.raises(ConfigError, match="107"):
            act(run_dir.root / ("x" * 100))
    assert inbox.receive(0) is None  # the probes have not disturbed the living one


def test_what_was_sent_before_the_exit_still_arrives(run_dir: RunDir, inbox: Inbox[Any]) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from pillion.messages.control import Drain\n"
        "from pillion.runtime.channels import Outbox\n"
        "outbox = Outbox.connect(Path(sys.argv[1]))\n"
        "for number in range(1000): outbox.send(Drain(deadline_ns=number))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(run_dir.inbox("a"))],
        check=True,
        timeout=20,
        env=child_environment(),
    )
    received = [inbox.receive(NS_PER_S) for _ in range(1000)]
    assert received == [Drain(deadline_ns=number) for number in range(1000)]


def test_an_exit_does_not_wait_long_for_a_reader_that_never_comes(run_dir: RunDir) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from pillion.messages.control import Shutdown\n"
        "from pillion.runtime.channels import Outbox\n"
        "Outbox.connect(Path(sys.argv[1])).send(Shutdown())\n"
    )
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", script, str(run_dir.inbox("nobody"))],
        check=True,
        timeout=20,
        env=child_environment(),
    )
    assert time.monotonic() - began < 5


async def test_an_event_loop_sees_every_message(run_dir: RunDir, inbox: Inbox[Any]) -> None:
    total = 5000
    received: list[Any] = []
    done = asyncio.Event()

    def read() -> None:
        received.extend(inbox.drain())
        if len(received) == total:
            done.set()

    def write() -> None:
        post = Post(run_dir)
        for number in range(total):
            post.send("a", Drain(deadline_ns=number))
        post.close()

    loop = asyncio.get_running_loop()
    loop.add_reader(inbox.fileno(), read)
    read()
    writer = threading.Thread(target=write)
    writer.start()
    async with asyncio.timeout(10):
        await done.wait()
    loop.remove_reader(inbox.fileno())
    writer.join()
    assert received == [Drain(deadline_ns=number) for number in range(total)]


def test_a_hop_takes_less_than_150_microseconds(run_dir: RunDir, inbox: Inbox[Any]) -> None:
    """The fastest tenth of the round trips says what a hop costs; the rest what else the machine did."""
    script = (
        "import sys; from pathlib import Path\n"
        "from pillion.messages.control import Drain, Shutdown\n"
        "from pillion.runtime.channels import Inbox, Post\n"
        "from pillion.runtime.paths import RunDir\n"
        "directory = RunDir(Path(sys.argv[1]))\n"
        "inbox = Inbox.bind(directory.inbox('b'), Drain | Shutdown)\n"
        "post = Post(directory)\n"
        "while not isinstance(message := inbox.receive(None), Shutdown): post.send('a', message)\n"
    )
    echo = subprocess.Popen(
        [sys.executable, "-c", script, str(run_dir.root)], env=child_environment()
    )
    post = Post(run_dir)
    post.send("b", Drain(deadline_ns=-1))
    assert inbox.receive(20 * NS_PER_S) == Drain(deadline_ns=-1)
    round_trips = []
    for number in range(1000):
        began = now_ns()
        post.send("b", Drain(deadline_ns=number))
        assert inbox.receive(NS_PER_S) == Drain(deadline_ns=number)
        round_trips.append(now_ns() - began)
    post.send("b", Shutdown())
    assert echo.wait(10) == 0
    post.close()
    assert sorted(round_trips)[100] / 2 < 150_000
