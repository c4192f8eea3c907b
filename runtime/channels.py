"""Messages between processes: ZeroMQ PUSH/PULL over Unix sockets. The only importer of zmq.

Each actor binds one inbox; whoever writes to it connects an outbox. There is no high-water mark: what is in
flight is bounded by the protocol, so a send never blocks.
"""

import atexit
import logging
import os
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import zmq

from pillion.messages.base import RingMessage
from pillion.messages.codec import Codec
from pillion.runtime.clock import NS_PER_MS
from pillion.runtime.errors import ConfigError, InvariantBroken
from pillion.runtime.paths import RunDir, check_socket_path, claim_socket_path, daemon_pid
from pillion.runtime.proc_files import has_argument

T = TypeVar("T")

logger = logging.getLogger(__name__)

LINGER_MS: Final = 500  # how long an exit waits for a peer that no longer reads
RECONNECT_MS: Final = 10
_FOREVER: Final = -1
_POLLIN: Final = int(zmq.POLLIN)
_MAX_TIMEOUT_MS: Final = 2**31 - 1  # what ZeroMQ takes, 24 days


class Inbox(Generic[T]):
    """The socket on which an actor takes its messages. Messages of one sender stay in order."""

    def __init__(self, socket: "zmq.Socket[bytes]", path: Path, codec: Codec[T]) -> None:
        self._socket = socket
        self._path = path
        self._codec = codec
        self._timeout_ms = _FOREVER
        self._strangers: set[int] = (
            set()
        )  # processes that are none of the daemon's, and were told of

    @classmethod
    def bind(cls, path: Path, union: Any) -> "Inbox[T]":
        """Binds the inbox. Raises ConfigError if the path is too long, taken, or not a socket."""
        claim_socket_path(path)
        try:
            socket = _context().socket(zmq.PULL)
            socket.set_hwm(0)
            socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen at {path}: {error.strerror}") from error
        return cls(socket, path, Codec(union))

    def receive(self, timeout_ns: int | None) -> T | None:
        """The next message, or None after the timeout (None: wait for ever) and after what a stranger sent.

        At most 1 ms late, and after 24 days at the latest.

        Raises InvariantBroken on a malformed frame of the daemon's own.
        """
        timeout_ms = _FOREVER
        if timeout_ns is not None:
            timeout_ms = min(-(-max(timeout_ns, 0) // NS_PER_MS), _MAX_TIMEOUT_MS)
        if timeout_ms != self._timeout_ms:
            self._socket.setsockopt(zmq.RCVTIMEO, timeout_ms)
            self._timeout_ms = timeout_ms
        try:
            return self._decode(self._socket.recv(copy=False))
        except zmq.Again:
            return None

    def drain(self) -> list[T]:
        """All messages that are there, without waiting. Raises InvariantBroken as `receive` does."""
        messages = []
        # To ask is cheaper than to have an exception made, and most turns find one message or none.
        while int(self._socket.getsockopt(zmq.EVENTS)) & _POLLIN:
            message = self._decode(self._socket.recv(zmq.NOBLOCK, copy=False))
            if message is not None:
                messages.append(message)
        return messages

    def fileno(self) -> int:
        """A descriptor for an event loop.

        It is edge-triggered: drain until empty after each event, and once after registering it.
        """
        return int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        """Unbinds and removes the socket file; messages that were not received are lost."""
        self._socket.close(linger=0)
        self._path.unlink(missing_ok=True)

    def _decode(self, frame: zmq.Frame) -> T | None:
        try:
            return self._codec.decode(frame.buffer)
        except msgspec.DecodeError as error:
            what = f"malformed frame of {len(frame)} bytes in {self._path.name}"
            sender = _sender(frame)
            if self._is_own(sender):
                raise InvariantBroken(f"{what}: {error}") from error
            if sender not in self._strangers:
                self._strangers.add(sender)
                logger.warning("dropped a %s from a stranger, pid %d: %s", what, sender, error)
            return None

    def _is_own(self, pid: int) -> bool:
        """Whether this is the daemon's launcher or an actor that lives. Any process of this user can connect."""
        run_dir = RunDir(self._path.parent)
        return (
            pid == os.getpid() or has_argument(pid, run_dir.argument) or pid == daemon_pid(run_dir)
        )


class Outbox:
    """The way to one inbox. The inbox may be bound later or again: messages wait until it is there."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()

    @classmethod
    def connect(cls, path: Path) -> "Outbox":
        """Connects, now or as soon as someone binds the path. Raises ConfigError if it is too long."""
        check_socket_path(path)
        socket = _context().socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.linger = LINGER_MS
        socket.reconnect_ivl = RECONNECT_MS
        socket.connect(f"ipc://{path}")
        return cls(socket)

    def send(self, message: RingMessage) -> None:
        """Queues a message; never blocks."""
        self.send_bytes(self._encoder.encode(message))

    def send_bytes(self, data: bytes) -> None:
        """Queues a message that is encoded already; never blocks."""
        self._socket.send(data, zmq.NOBLOCK)

    def close(self) -> None:
        """No more messages. Queued ones are still sent, for at most LINGER_MS after the process's end."""
        self._socket.close()

    def abandon(self) -> None:
        """No more messages, and nobody is left to read the queued ones."""
        self._socket.close(linger=0)


class Post:
    """Outboxes by actor name, connected on first use to the actor's current life."""

    def __init__(self, run_dir: RunDir, epochs: Mapping[str, int] | None = None) -> None:
        """`epochs` has the actors whose current life is not their first."""
        self._run_dir = run_dir
        self._epochs = dict(epochs or {})
        self._encoder = msgspec.msgpack.Encoder()
        self._outboxes: dict[str, Outbox] = {}

    def send(self, destination: str, message: RingMessage) -> None:
        """Queues a message for an actor; never blocks."""
        self.send_bytes(destination, self._encoder.encode(message))

    def send_bytes(self, destination: str, data: bytes) -> None:
        """Queues a message that is encoded already; never blocks."""
        outbox = self._outboxes.get(destination)
        if outbox is None:
            epoch = self._epochs.get(destination, 1)
            outbox = Outbox.connect(self._run_dir.inbox(destination, epoch))
            self._outboxes[destination] = outbox
        outbox.send_bytes(data)

    def is_newer(self, actor: str, epoch: int) -> bool:
        """Whether this is a later life of the actor than the one that messages go to."""
        return epoch > self._epochs.get(actor, 1)

    def follow(self, actor: str, epoch: int) -> None:
        """From now on messages go to this life of the actor. What an earlier one has not taken is lost."""
        self._epochs[actor] = epoch
        outbox = self._outboxes.pop(actor, None)
        if outbox is not None:
            outbox.abandon()

    def close(self) -> None:
        """Closes every outbox."""
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes.clear()


def _sender(frame: zmq.Frame) -> int:
    """The process that sent it: ZeroMQ tells host, uid, gid and pid of a peer on a Unix socket."""
    return int(str(frame["Peer-Address"]).rpartition(":")[2])


@cache
def _context() -> "zmq.Context[zmq.Socket[bytes]]":
    """The process's ZeroMQ context, ended at exit so that queued messages still leave."""
    context = zmq.Context()
    atexit.register(_end, context)
    return context


def send_the_rest() -> None:
    """Ends this process's channels; waits until queued messages have left, for at most LINGER_MS."""
    _end(_context())


def _end(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with warnings.catch_warnings():
        # After an error sockets are open here, and a warning made an exception would leave them so.
        warnings.simplefilter("ignore", ResourceWarning)
        context.destroy(linger=LINGER_MS)
