"""The replies to one request as an asynchronous iterator."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from pillion.messages.text import GenerateRequest
from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.async_request_exchange import AsyncRequestExchange
from pillion.runtime.client_requests import guard_ns, no_answer
from pillion.runtime.clock import now_ns
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.request_assembly import RequestAssembly
from pillion.runtime.resumable import MAX_LOSSES


class AsyncRequestStream:
    """Iterates over what is new of an answer; `output` is the answer so far.

    Closing it, leaving its `async with` block, dropping it or cancelling the task that waits for it cancels
    the request in the daemon. When the connection is lost it goes on behind what has come, as soon as the
    daemon takes connections again. Raises RequestError when the request fails and DaemonUnavailable when
    the daemon is lost.
    """

    def __init__(
        self,
        owner: object,
        connect: Callable[[int | None], Awaitable[AsyncConnection]],
        request: GenerateRequest,
        max_losses: int = MAX_LOSSES,
    ) -> None:
        """Use `start`."""
        self._owner = owner  # its end would close the connection
        self._deadline_ms = request.deadline_ms
        self._guard_ns = guard_ns(request.deadline_ms, now_ns())
        params = request.sampling_params
        self._assembly = RequestAssembly(
            request.client_request_id, params.n if params else 1, request.prompt
        )
        self._exchange = AsyncRequestExchange(connect, max_losses)
        self._open = True

    @classmethod
    async def start(
        cls,
        owner: object,
        connect: Callable[[int | None], Awaitable[AsyncConnection]],
        request: GenerateRequest,
        max_losses: int = MAX_LOSSES,
    ) -> Self:
        """Sends the request. Raises DaemonUnavailable."""
        self = cls(owner, connect, request, max_losses)
        try:
            await self._exchange.send(request, self._guard_ns)
        except BaseException:
            self.close()
            raise
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
            reply = await self._exchange.receive(self._guard_ns)
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
            self._exchange.forget(self._assembly.output.request_id)
        else:
            self._exchange.close()

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
            self._exchange.close_soon()
