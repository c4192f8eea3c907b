"""The replies to one request as an asynchronous iterator."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from pillion.messages.text import GenerateRequest
from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.async_request_exchange import AsyncRequestExchange
from pillion.runtime.client_requests import guard_ns
from pillion.runtime.clock import now_ns
from pillion.runtime.open_answer import OpenAnswer
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.resumable import MAX_LOSSES


class AsyncRequestStream(OpenAnswer[AsyncRequestExchange]):
    """Iterates over what is new of an answer; `output` is the answer so far.

    Closing it, leaving its `async with` block, dropping it or cancelling the task that waits for it cancels
    the request in the daemon. When the connection is lost it goes on behind what has come, as soon as the
    daemon takes connections again. Raises RequestError when the request fails and DaemonUnavailable when
    the daemon is lost.
    """

    @classmethod
    async def start(
        cls,
        connect: Callable[[int | None], Awaitable[AsyncConnection]],
        request: GenerateRequest,
        max_losses: int = MAX_LOSSES,
    ) -> Self:
        """Sends the request. Raises DaemonUnavailable."""
        sent_ns, exchange = now_ns(), AsyncRequestExchange(connect, max_losses)
        try:
            await exchange.send(request, guard_ns(request.deadline_ms, sent_ns))
        except BaseException:
            exchange.close()
            raise
        return cls(request, exchange, sent_ns)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self._open:
            raise StopAsyncIteration
        try:
            return self._take(await self._exchange.receive(self._guard_ns))
        except BaseException:  # a cancelled task too ends the iteration, and with it the request
            self.close()
            raise

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
