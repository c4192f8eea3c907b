"""The control socket: short questions from the command line to the launcher, and their answers.

The framing is that of the client protocol (messages/text.py). The peer may send anything: what is not a
request gets a ControlFailed and is hung up on.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from pillion.messages import inboxes
from pillion.messages.base import EdgeMessage
from pillion.messages.codec import FRAME_HEADER_BYTES, Codec, frame, frame_length
from pillion.messages.control import ControlFailed, DaemonStatus, StatusRequest, StopAccepted
from pillion.runtime.errors import DaemonUnavailable, PillionError
from pillion.runtime.paths import RunDir, claim_socket_path, usable
from pillion.runtime.silence import why_silent

MAX_REQUEST_BYTES: Final = 64 * 1024
MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
MAX_CONNECTIONS: Final = 64
REQUEST_DEADLINE_S: Final = 10.0
STOPPED_LOOK_S: Final = 0.5  # how often a client that waits looks whether the launcher is stopped


class ControlServer:
    """Answers each frame with what `answer` returns; after StopAccepted the line stays open to the end."""

    def __init__(self, answer: Callable[[inboxes.ControlRequest], inboxes.ControlReply]) -> None:
        self._answer = answer
        self._codec: Codec[inboxes.ControlRequest] = Codec(inboxes.ControlRequest)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}  # owe a request, the longest first

    async def bind(self, path: Path) -> None:
        """Begins to listen. Raises ConfigError if the path is too long, taken, or not a socket."""
        claim_socket_path(path)
        with usable(path):
            self._server = await asyncio.start_unix_server(self._serve, path)

    def close(self) -> None:
        """Hangs up on everybody."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= MAX_CONNECTIONS:
            self._hang_up_on_silent(writer)
        if writer.is_closing():
            return
        self._writers.add(writer)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the peer is gone or says nothing; only this connection ends
        finally:
            self._writers.discard(writer)
            self._silent.pop(writer, None)
            writer.close()

    def _hang_up_on_silent(self, newcomer: asyncio.StreamWriter) -> None:
        """Makes room for a newcomer, however many keep a connection for nothing. If all have asked, there is none."""
        silent = next(iter(self._silent), newcomer)
        self._silent.pop(silent, None)
        self._writers.discard(silent)
        silent.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self._silent[writer] = None
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                reply = await self._read_and_answer(reader)
            self._silent.pop(writer, None)
            writer.write(frame(self._codec.encode(reply)))
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                await writer.drain()
            if isinstance(reply, ControlFailed):
                return
            if isinstance(reply, StopAccepted):
                await reader.read()  # until the peer loses interest or close() hangs up
                return

    async def _read_and_answer(self, reader: asyncio.StreamReader) -> inboxes.ControlReply:
        length = frame_length(await reader.readexactly(FRAME_HEADER_BYTES))
        if length > MAX_REQUEST_BYTES:
            return ControlFailed(
                message=f"a request may have {MAX_REQUEST_BYTES} bytes, this one announces {length}"
            )
        data = await reader.readexactly(length)
        try:
            request = self._codec.decode(data)
        except msgspec.DecodeError as error:
            return ControlFailed(message=f"not a control request: {error}")
        return self._answer(request)


class ControlClient:
    """A connection of the command line to a launcher."""

    def __init__(self, directory: RunDir, timeout_s: float = 5.0) -> None:
        """Connects. Raises DaemonUnavailable if no daemon answers under this name, or its launcher is stopped."""
        self._directory = directory
        self._name = directory.root.name
        self._timeout_s = timeout_s
        self._codec: Codec[inboxes.ControlReply] = Codec(inboxes.ControlReply)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._refuse_if_stopped()
            self._socket.connect(os.fsencode(directory.control_socket))
        except DaemonUnavailable:
            self._socket.close()
            raise
        except OSError as error:
            self._socket.close()
            raise self._not_connected(error) from error

    def ask(self, request: EdgeMessage) -> inboxes.ControlReply:
        """Sends a request and waits for its reply.

        Raises DaemonUnavailable if the daemon hangs up or does not answer in time, PillionError if it
        answers with ControlFailed.
        """
        try:
            self._socket.sendall(frame(self._codec.encode(request)))
            length = frame_length(self._read(FRAME_HEADER_BYTES))
            if length > MAX_REPLY_BYTES:
                raise PillionError(f"the daemon's reply announces {length} bytes")
            reply = self._codec.decode(self._read(length))
        except DaemonUnavailable:
            raise
        except OSError as error:
            raise DaemonUnavailable(
                f"the daemon {self._name!r} does not answer: {error}"
            ) from error
        except msgspec.DecodeError as error:
            raise PillionError(
                f"the daemon {self._name!r} speaks another version: {error}"
            ) from error
        if isinstance(reply, ControlFailed):
            raise PillionError(reply.message)
        return reply

    def wait_hang_up(self, timeout_s: float) -> bool:
        """Waits until the daemon closes the connection. Returns whether it did in time.

        Raises DaemonUnavailable if its launcher is stopped.
        """
        try:
            while self._receive(4096, timeout_s):
                pass
        except TimeoutError:
            return False
        except DaemonUnavailable:
            raise
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            received = self._receive(length - len(data), self._timeout_s)
            if not received:
                raise ConnectionResetError("it hung up")
            data += received
        return bytes(data)

    def _receive(self, size: int, timeout_s: float) -> bytes:
        """Raises TimeoutError, and DaemonUnavailable as soon as the launcher is seen to be stopped."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._socket.settimeout(max(0.0, min(STOPPED_LOOK_S, deadline - time.monotonic())))
            try:
                return self._socket.recv(size)
            except (TimeoutError, BlockingIOError):
                self._refuse_if_stopped()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nothing came within {timeout_s:g} s") from None

    def _refuse_if_stopped(self) -> None:
        reason = why_silent(self._directory)
        if reason is not None:
            raise DaemonUnavailable(f"the daemon {self._name!r} does not answer: {reason}")

    def _not_connected(self, error: OSError) -> DaemonUnavailable:
        path = self._directory.control_socket
        if isinstance(error, PermissionError):
            reason = f"this user may not open {path}; a daemon serves the user who started it"
        elif isinstance(error, TimeoutError):
            reason = f"{path} is there and nobody takes the call"
        else:
            return DaemonUnavailable(
                f"no daemon named {self._name!r} is running (looked in {self._directory.root})"
            )
        return DaemonUnavailable(f"the daemon {self._name!r} does not answer: {reason}")


def ask_status(directory: RunDir, timeout_s: float) -> DaemonStatus:
    """The state of the daemon in this run directory. Raises DaemonUnavailable."""
    control = ControlClient(directory, timeout_s)
    try:
        reply = control.ask(StatusRequest())
    finally:
        control.close()
    if not isinstance(reply, DaemonStatus):
        raise DaemonUnavailable(f"the daemon answered {type(reply).__name__} instead of its status")
    return reply
