"""One connection to a daemon's text edge, shared by threads, and what both clients need to open one."""

import errno
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

import msgspec

from pillion.messages.codec import Codec
from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import PROTOCOL_VERSION, CancelRequest, Hello, RequestFailed, Welcome
from pillion.runtime.client_requests import encode_frame, error_of
from pillion.runtime.clock import NS_PER_MS, NS_PER_S, now_ns
from pillion.runtime.errors import DaemonUnavailable, PillionError
from pillion.runtime.frame_buffer import FrameBuffer
from pillion.runtime.paths import check_socket_path, run_dir

_RECEIVE_BYTES: Final = 256 * 1024
# A daemon that takes no byte for so long is not alive.
_SEND_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Told to every open request when its connection ends.

    `final`: it was ended on purpose, or the other side makes no sense; another connection is no remedy.
    `refused`: the daemon is ending, and this client waits for the next one.
    """

    reason: str
    final: bool = False
    refused: bool = False

    def error(self) -> DaemonUnavailable:
        """The exception that tells a caller of it."""
        return DaemonUnavailable(self.reason, may_pass=not self.final)


CLOSED: Final = ConnectionLost("the client was closed", final=True)
ABANDONED: Final = ConnectionLost("the connection belongs to the parent process", final=True)
HUNG_UP: Final = ConnectionLost(
    "the daemon closed the connection: see `pillion status` and `pillion logs`"
)


def connection_failed(error: OSError) -> ConnectionLost:
    """The end that a socket's error brings."""
    return ConnectionLost(f"the connection to the daemon was lost: {error}")


def not_understood(error: Exception) -> ConnectionLost:
    """The end that a daemon's nonsense brings."""
    reason = f"the daemon sent something that this client does not understand: {error}"
    return ConnectionLost(reason, final=True)


def is_ending(reply: DaemonToClient) -> TypeGuard[RequestFailed]:
    """Whether this is how a daemon that ends answers what is open, and what still comes."""
    return isinstance(reply, RequestFailed) and reply.code == "unavailable"


Reply = DaemonToClient | ConnectionLost
Sink = Callable[[Reply], None]


def socket_path(name: str | os.PathLike[str]) -> Path:
    """Where a daemon's text edge is: by daemon name, or a path (anything with a slash)."""
    path = os.fspath(name)
    if os.sep not in path:
        return run_dir(path).client_socket
    check_socket_path(Path(path))
    return Path(path)


def open_socket(path: Path, timeout_s: float) -> socket.socket:
    """A connected socket with this timeout set. Raises DaemonUnavailable."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        raise connect_failure(path, error) from error
    return connection


def hello_frame(client_name: str, fairness_key: str) -> bytes:
    """The first frame of a client."""
    return encode_frame(
        Hello(
            protocol_version=PROTOCOL_VERSION,
            client_name=client_name,
            fairness_key=fairness_key,
        )
    )


def check_welcome(reply: object) -> Welcome:
    """The Welcome if the daemon gave one. Raises the error that it gave instead."""
    if isinstance(reply, Welcome):
        if reply.protocol_version != PROTOCOL_VERSION:
            raise DaemonUnavailable(
                f"the daemon speaks version {reply.protocol_version} of the client protocol and this"
                f" client version {PROTOCOL_VERSION}: use the same pillion on both sides"
            )
        return reply
    if isinstance(reply, RequestFailed):
        if reply.code == "unavailable":
            raise DaemonUnavailable(reply.message)
        raise error_of(reply)
    raise DaemonUnavailable(f"the daemon did not greet but sent {type(reply).__name__}")


class Connection:
    """A greeted connection. Its thread reads; any thread may send.

    Every request that was submitted gets its replies through its sink, called on the reading thread; when
    the connection ends, for whatever reason, each open one gets ConnectionLost at once.
    """

    def __init__(
        self,
        path: Path,
        client_name: str,
        fairness_key: str,
        timeout_s: float,
        *,
        outlives_daemon: bool = False,
    ) -> None:
        """Connects and greets. Raises DaemonUnavailable after `timeout_s` at the latest.

        `outlives_daemon`: leave a daemon that is ending, in place of telling requests of it.
        """
        self._codec: Codec[DaemonToClient] = Codec(DaemonToClient)
        self._frames = FrameBuffer()
        # Shared without a lock: a garbage collector may drop a stream, and so cancel its request, in the
        # middle of anything. Each change is one operation of a dict or deque.
        self._sinks: dict[str, Sink] = {}
        self._to_cancel: deque[str] = deque()
        self._send_lock = threading.Lock()
        self._outlives_daemon = outlives_daemon
        self._lost: ConnectionLost | None = None
        self._socket = open_socket(path, timeout_s)
        try:
            self.welcome, early = self._greet(path, client_name, fairness_key, timeout_s)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        _open_connections.add(self)
        self._reader = threading.Thread(
            target=self._read, args=(early,), name="pillion-client", daemon=True
        )
        self._reader.start()

    @property
    def lost(self) -> ConnectionLost | None:
        """How the connection has ended; None while it lives."""
        return self._lost

    def submit(self, request_id: str, message: msgspec.Struct, sink: Sink) -> None:
        """Sends a request whose replies go to `sink` until `forget`. Raises DaemonUnavailable."""
        data = encode_frame(message)
        self._sinks[request_id] = sink
        try:
            # Looked at after the sink is there: either we see the end or the end sees the sink.
            if self._lost is not None:
                raise self._lost.error()
            self._send(data)
        except BaseException:
            self.forget(request_id)
            raise

    def forget(self, request_id: str) -> None:
        """Drops whatever else comes for a request."""
        self._sinks.pop(request_id, None)

    def cancel(self, request_id: str) -> None:
        """Forgets a request and has the daemon end it. Never raises: a lost connection cancels too."""
        self.forget(request_id)
        if self._lost is None:
            try:
                self._send(encode_frame(CancelRequest(client_request_id=request_id)))
            except PillionError:
                pass

    def cancel_soon(self, request_id: str) -> None:
        """As `cancel`, from a destructor: if a frame is just being sent, its sender sends this one too."""
        self.forget(request_id)
        self._to_cancel.append(request_id)
        self._send_cancels()

    def close(self) -> None:
        """Ends the connection; the daemon cancels what is open."""
        self._end(CLOSED)

    def _abandon_after_fork(self) -> None:
        # This is the child's copy. Closing the descriptor is all that may be done to it: the connection
        # is the parent's. Locks may have been held by threads that do not exist here.
        self._lost = ABANDONED
        self._send_lock = threading.Lock()
        self._sinks = {}
        self._to_cancel.clear()
        self._socket.close()

    def _greet(
        self, path: Path, client_name: str, fairness_key: str, timeout_s: float
    ) -> tuple[Welcome, list[bytes]]:
        """Returns the daemon's Welcome and frames that came right behind it."""
        deadline_ns = now_ns() + int(timeout_s * NS_PER_S)
        try:
            self._socket.sendall(hello_frame(client_name, fairness_key))
            payloads: list[bytes] = []
            while not payloads:
                self._socket.settimeout(max(0.001, (deadline_ns - now_ns()) / NS_PER_S))
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise DaemonUnavailable(
                        f"the daemon behind {path} hung up without a greeting", may_pass=True
                    )
                payloads = self._frames.feed(data)
            return check_welcome(self._codec.decode(payloads[0])), payloads[1:]
        except TimeoutError as error:
            raise DaemonUnavailable(
                f"the daemon behind {path} did not answer within {timeout_s:g} s", may_pass=True
            ) from error
        except DaemonUnavailable:
            raise
        except OSError as error:
            raise DaemonUnavailable(
                f"the daemon behind {path} hung up: {error}", may_pass=True
            ) from error
        except (ValueError, msgspec.DecodeError) as error:
            raise DaemonUnavailable(
                f"{path} does not speak Pillion's client protocol: {error}"
            ) from error

    def _read(self, early: list[bytes]) -> None:
        lost = HUNG_UP
        try:
            for payload in early:
                self._dispatch(payload)
            while data := self._socket.recv(_RECEIVE_BYTES):
                for payload in self._frames.feed(data):
                    self._dispatch(payload)
        except DaemonUnavailable as error:
            lost = ConnectionLost(str(error), final=True)
        except OSError as error:
            lost = connection_failed(error)
        except (ValueError, msgspec.DecodeError) as error:
            lost = not_understood(error)
        self._end(lost)
        with self._send_lock:
            self._socket.close()

    def _dispatch(self, payload: bytes) -> None:
        reply = self._codec.decode(payload)
        if isinstance(reply, Welcome):
            return
        if self._outlives_daemon and is_ending(reply):
            self._end(ConnectionLost(reply.message, refused=True))
            return
        sink = self._sinks.get(reply.client_request_id)
        if sink is not None:
            sink(reply)
        elif isinstance(reply, RequestFailed) and not reply.client_request_id:
            raise DaemonUnavailable(reply.message)

    def _send(self, data: bytes) -> None:
        """Sends a whole frame or ends the connection: half a frame would garble all that follow."""
        with self._send_lock:
            self._send_all(data)
        self._send_cancels()

    def _send_cancels(self) -> None:
        while self._to_cancel and self._lost is None and self._send_lock.acquire(blocking=False):
            try:
                while self._to_cancel:
                    message = CancelRequest(client_request_id=self._to_cancel.popleft())
                    self._send_all(encode_frame(message))
            except PillionError:
                return  # the connection has ended, and that cancels too
            finally:
                self._send_lock.release()

    def _send_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._send_some(view) :]
        except OSError as error:
            lost = connection_failed(error)
            self._end(lost)
            raise (self._lost or lost).error() from error
        except BaseException:  # an interrupt: how much was sent is not known
            self._end(ConnectionLost("sending to the daemon was interrupted"))
            raise

    def _send_some(self, view: memoryview) -> int:
        try:
            return self._socket.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if not poll.poll(_SEND_TIMEOUT_S * NS_PER_S / NS_PER_MS):
                raise TimeoutError(f"it took no byte for {_SEND_TIMEOUT_S:g} s") from None
            return 0

    def _end(self, lost: ConnectionLost) -> None:
        if self._lost is not None:
            return
        self._lost = lost
        # Wakes the reading thread, which closes the socket, and any sender. To close it here would not wake
        # them, and the descriptor's number could be somebody else's while they still use it.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        while self._sinks:
            try:
                _, sink = self._sinks.popitem()
            except KeyError:
                return  # another thread ends the connection too
            sink(lost)


_open_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _abandon_connections() -> None:
    for connection in list(_open_connections):
        connection._abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_connections)


def connect_failure(path: Path, error: OSError) -> DaemonUnavailable:
    """The exception that says why no connection came about, and what the user can do."""
    # Of a text edge that is not there yet or not any more, or that is busy.
    passing = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE)
    may_pass = isinstance(error, TimeoutError) or error.errno in passing
    return DaemonUnavailable(_explain(path, error), may_pass=may_pass)


def _explain(path: Path, error: OSError) -> str:
    start = "start one with `pillion serve MODEL`"
    if path.name == "client.sock":
        name = path.parent.name
        start = (
            f"start one with `pillion serve MODEL --name {name}`" if name != "default" else start
        )
        whom = f"no Pillion daemon named {name!r} answers"
    else:
        whom = f"no Pillion daemon answers at {path}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"{whom} (there is no socket {path}): {start}"
    if error.errno == errno.ECONNREFUSED:
        return f"{whom} (the one that made {path} is gone): {start}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{whom}: this user may not open {path}; a daemon serves the user who started it"
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        return f"{whom} in time: {path} is there but its daemon is busy or stopped"
    return f"{whom}: {error}"
