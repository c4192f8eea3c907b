"""The control socket between a client and a server in one process."""

import asyncio
import os
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from pillion.messages.codec import frame
from pillion.messages.control import (
    ControlFailed,
    DaemonStatus,
    StatusRequest,
    StopAccepted,
    StopRequest,
)
from pillion.messages.inboxes import ControlReply, ControlRequest
from pillion.runtime import control_socket
from pillion.runtime.control_socket import MAX_CONNECTIONS, ControlClient, ControlServer
from pillion.runtime.errors import ConfigError, DaemonUnavailable, PillionError
from pillion.runtime.paths import RunDir

STATUS = DaemonStatus(
    version="1",
    name="d",
    pid=1,
    state="starting",
    model="fake",
    uptime_s=0.0,
    ready_after_s=None,
    start_phases=[("a", "b", 1.0)],
    geometry=None,
    actors=[],
    failure=None,
)


def answer(request: ControlRequest) -> ControlReply:
    return STATUS if isinstance(request, StatusRequest) else StopAccepted(pid=42)


@pytest.fixture
async def server(run_dir: RunDir) -> AsyncIterator[ControlServer]:
    server = ControlServer(answer)
    await server.bind(run_dir.control_socket)
    yield server
    server.close()
    await asyncio.sleep(0)


async def test_questions_are_answered_on_one_connection(
    run_dir: RunDir, server: ControlServer
) -> None:
    def ask() -> list[object]:
        client = ControlClient(run_dir)
        replies = [client.ask(StatusRequest()), client.ask(StatusRequest())]
        client.close()
        return list(replies)

    assert await asyncio.to_thread(ask) == [STATUS, STATUS]


async def test_the_line_stays_open_after_a_stop_until_the_end(
    run_dir: RunDir, server: ControlServer
) -> None:
    client = await asyncio.to_thread(ControlClient, run_dir)
    assert await asyncio.to_thread(client.ask, StopRequest()) == StopAccepted(pid=42)
    assert not await asyncio.to_thread(client.wait_hang_up, 0.05)
    server.close()
    assert await asyncio.to_thread(client.wait_hang_up, 5)
    client.close()


async def exchange(run_dir: RunDir, data: bytes) -> bytes:
    """Sends bytes and an end of file. Returns what came back until the server hung up."""
    reader, writer = await asyncio.open_unix_connection(run_dir.control_socket)
    writer.write(data)
    writer.write_eof()
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (frame(b"abc"), "not a control request"),
        (frame(msgspec.msgpack.encode({"type": "Reboot"})), "not a control request"),
        (frame(msgspec.msgpack.encode({"type": "StopRequest", "drain_s": "x"})), "drain_s"),
        (b"\xff\xff\xff\x7f", "may have 65536 bytes"),
    ],
)
async def test_what_makes_no_sense_is_answered_and_hung_up_on(
    run_dir: RunDir, server: ControlServer, data: bytes, message: str
) -> None:
    received = await exchange(run_dir, data)
    reply = msgspec.msgpack.decode(received[4:], type=ControlFailed)
    assert message in reply.message


async def test_random_bytes_end_only_their_connection(
    run_dir: RunDir, server: ControlServer
) -> None:
    random.seed(1)
    for _ in range(200):
        length = random.choice((1, 3, 4, 5, 40, 3000))
        data = random.randbytes(length)
        await exchange(run_dir, frame(data) if random.random() < 0.5 else data)
    valid = frame(msgspec.msgpack.encode(StatusRequest()))
    assert msgspec.msgpack.decode((await exchange(run_dir, valid))[4:], type=DaemonStatus) == STATUS


async def test_a_silent_peer_is_hung_up_on(
    run_dir: RunDir, server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "REQUEST_DEADLINE_S", 0.05)
    reader, writer = await asyncio.open_unix_connection(run_dir.control_socket)
    writer.write(b"\x05\0")
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_silent_peers_shut_nobody_out(run_dir: RunDir, server: ControlServer) -> None:
    silent = [
        await asyncio.open_unix_connection(run_dir.control_socket)
        for _ in range(2 * MAX_CONNECTIONS)
    ]
    valid = frame(msgspec.msgpack.encode(StatusRequest()))
    for _ in range(3):
        assert (
            msgspec.msgpack.decode((await exchange(run_dir, valid))[4:], type=DaemonStatus)
            == STATUS
        )
    async with asyncio.timeout(5):
        assert await silent[0][0].read() == b"", "the longest silent one gives way"
    for _, writer in silent:
        writer.close()


async def test_connections_are_bounded(run_dir: RunDir, server: ControlServer) -> None:
    peers = [
        await asyncio.open_unix_connection(run_dir.control_socket) for _ in range(MAX_CONNECTIONS)
    ]
    for _, writer in peers:
        writer.write(frame(msgspec.msgpack.encode(StatusRequest())))
    for reader, _ in peers:
        async with asyncio.timeout(5):
            assert await reader.read(1) != b""
    assert await exchange(run_dir, b"") == b""
    for _, writer in peers:
        writer.close()


def test_no_daemon_is_told_by_name(run_dir: RunDir) -> None:
    with pytest.raises(DaemonUnavailable, match=r"no daemon named 'd' is running \(looked in "):
        ControlClient(run_dir)


async def test_an_answer_that_fails_or_does_not_come(run_dir: RunDir) -> None:
    replies = iter(
        [frame(msgspec.msgpack.encode(ControlFailed(message="no such thing"))), b"", b"\1"]
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(next(replies))
        writer.close()

    server = await asyncio.start_unix_server(serve, run_dir.control_socket)

    def ask() -> object:
        client = ControlClient(run_dir)
        try:
            return client.ask(StatusRequest())
        finally:
            client.close()

    with pytest.raises(PillionError, match="no such thing"):
        await asyncio.to_thread(ask)
    for _ in range(2):
        with pytest.raises(DaemonUnavailable, match="does not answer"):
            await asyncio.to_thread(ask)
    server.close()


async def test_binding_refuses_what_is_in_the_way(run_dir: RunDir) -> None:
    run_dir.control_socket.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        await ControlServer(answer).bind(run_dir.control_socket)
    assert os.path.getsize(run_dir.control_socket) == 8
