"""One connection to a daemon's text edge, shared by threads."""

import os
import select
import socket
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from pillion.messages.codec import Codec
from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import CancelRequest, RequestFailed, Welcome
from pillion.runtime.client_requests import encode_frame
from pillion.runtime.clock import NS_PER_MS, NS_PER_S, now_ns
from pillion.runtime.connection_end import (
    ABANDONED,
    CLOSED,
    HUNG_UP,
    ConnectionLost,
    Sink,
    connection_failed,
    is_ending,
    not_understood,
)
from pillion.runtime.daemon_socket import open_socket
from pillion.runtime.errors import DaemonUnavailable, PillionError
from pillion.runtime.frame_buffer import FrameBuffer
from pillion.runtime.greeting import check_welcome, hello_frame

_RECEIVE_BYTES: Final = 256 * 1024
# A daemon that takes no byte for so long is not alive.
_SEND_TIMEOUT_S: Final = 30.0


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
        leaves_ending: bool = False,
    ) -> None:
        """Connects and greets. Raises DaemonUnavailable after `timeout_s` at the latest.

        `leaves_ending`: what the daemon refuses or ends because it is ending itself loses its connection, in
        place of failing; what else is open here may finish.
        """
        self._codec: Codec[DaemonToClient] = Codec(DaemonToClient)
        self._frames = FrameBuffer()
        # Shared without a lock: a garbage collector may drop a stream, and so cancel its request, in the
        # middle of anything. Each change is one operation of a dict or deque.
        self._sinks: dict[str, Sink] = {}
        self._to_cancel: deque[str] = deque()
        self._send_lock = threading.Lock()
        self.is_ending = False  # the daemon takes nothing new
        self._leaves_ending = leaves_ending
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

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._sinks

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
        if self._leaves_ending and is_ending(reply):
            self.is_ending = True
            self._refuse(reply)
            return
        sink = self._sinks.get(reply.client_request_id)
        if sink is not None:
            sink(reply)
        elif isinstance(reply, RequestFailed) and not reply.client_request_id:
            raise DaemonUnavailable(reply.message)

    def _refuse(self, reply: RequestFailed) -> None:
        sink = self._sinks.pop(reply.client_request_id, None)
        if sink is not None:
            sink(ConnectionLost(reply.message, refused=True))

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
