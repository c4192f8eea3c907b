"""The replies to one request as an asynchronous iterator."""

import asyncio
from types import TracebackType
from typing import Self

from pillion.messages.text import GenerateRequest
from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.client_connection import ConnectionLost, Reply
from pillion.runtime.client_requests import guard_ns, no_answer
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.request_assembly import RequestAssembly


async def receive(replies: "asyncio.Queue[Reply]", until_ns: int | None) -> Reply | None:
    """The next reply, or None when `until_ns` has come. Raises DaemonUnavailable on a lost connection."""
    timeout = None if until_ns is None else max(0.0, (until_ns - now_ns()) / NS_PER_S)
    try:
        async with asyncio.timeout(timeout):
            reply = await replies.get()
    except TimeoutError:
        return None
    if isinstance(reply, ConnectionLost):
        raise DaemonUnavailable(reply.reason)
    return reply


class AsyncRequestStream:
    """Iterates over what is new of an answer; `output` is the answer so far.

    Closing it, leaving its `async with` block, dropping it or cancelling the task that waits for it cancels
    the request in the daemon. Raises RequestError when the request fails and DaemonUnavailable when the
    daemon is lost.
    """

    def __init__(
        self, owner: object, connection: AsyncConnection, request: GenerateRequest
    ) -> None:
        """Use `start`."""
        self._owner = owner  # its end would close the connection
        self._connection = connection
        self._request_id = request.client_request_id
        self._deadline_ms = request.deadline_ms
        self._guard_ns = guard_ns(request.deadline_ms, now_ns())
        params = request.sampling_params
        self._assembly = RequestAssembly(
            self._request_id, params.n if params else 1, request.prompt
        )
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()
        self._open = False

    @classmethod
    async def start(
        cls, owner: object, connection: AsyncConnection, request: GenerateRequest
    ) -> Self:
        """Sends the request. Raises DaemonUnavailable."""
        self = cls(owner, connection, request)
        await connection.submit(request.client_request_id, request, self._replies.put_nowait)
        self._open = True
        return self

    @property
    def output(self) -> RequestOutput:
        """Everything received so far."""
        return self._assembly.output

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self._open:
            raise StopAsyncIteration
        try:
            reply = await receive(self._replies, self._guard_ns)
            if reply is None:
                raise no_answer(self._deadline_ms)
            new = self._assembly.take(reply)
        except BaseException:  # a cancelled task too ends the iteration, and with it the request
            self.close()
            raise
        if self._assembly.ended:
            self.close()
        return new

    def close(self) -> None:
        """Cancels the request unless it has ended."""
        if not self._open:
            return
        self._open = False
        if self._assembly.ended:
            self._connection.forget(self._request_id)
        else:
            self._connection.cancel(self._request_id)

    async def aclose(self) -> None:
        """As `close`, for those who expect an asynchronous generator."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._connection.cancel_soon(self._request_id)
