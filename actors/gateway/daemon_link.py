"""The gateway's connection to the text edge."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from pillion.messages.control import EngineGeometry
from pillion.messages.text import (
    DetokenizeReply,
    DetokenizeRequest,
    HttpSpan,
    TokenizeReply,
    TokenizeRequest,
)
from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.async_request_exchange import AsyncRequestExchange
from pillion.runtime.client_requests import expect_reply
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import DaemonUnavailable, RequestError
from pillion.runtime.patience import Patience
from pillion.runtime.resumable import Question

CONNECT_TIMEOUT_S: Final = 2.0
REATTACH_TIMEOUT_S: Final = 60.0
QUESTION_TIMEOUT_S: Final = 60.0

_Answer = TypeVar("_Answer", TokenizeReply, DetokenizeReply)


class DaemonLink:
    """One connection that carries the requests of all HTTP clients; opened again when it was lost, and what is
    open then goes on."""

    def __init__(self, path: Path) -> None:
        self.geometry: EngineGeometry | None = None  # once the weights are loaded
        self.closed_because: str | None = None  # why nothing new is taken
        self.not_ready: str | None = (
            None  # why a request would wait or fail, as the launcher sees it
        )
        self._path = path
        self._connection: AsyncConnection | None = None
        self._opening = asyncio.Lock()
        self._ids = itertools.count(1)

    def new_request_id(self) -> str:
        """An id that no other request of this connection has."""
        return str(next(self._ids))

    async def connection(self, until_ns: int | None = None) -> AsyncConnection:
        """A living connection; a text edge that is being replaced is waited for.

        Raises DaemonUnavailable when that takes too long, and at once while the daemon stops.
        """
        latest_ns = now_ns() + int(REATTACH_TIMEOUT_S * NS_PER_S)
        patience = Patience([self._path], min(latest_ns, until_ns or latest_ns))
        while True:
            try:
                return await self._connect_once()
            except DaemonUnavailable as error:
                await asyncio.sleep(patience.pause_s(error, now_ns()))

    async def _connect_once(self) -> AsyncConnection:
        if self.closed_because is not None:
            raise DaemonUnavailable(self.closed_because)
        connection = self._connection
        if connection is not None and connection.lost is None:
            return connection
        async with self._opening:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await AsyncConnection.open(
                    self._path, "gateway", "", CONNECT_TIMEOUT_S
                )
            return self._connection

    async def why_not_ready(self) -> str | None:
        """None if a request would run now, else the reason why not."""
        if self.not_ready is not None:
            return self.not_ready
        try:
            connection = await self._connect_once()
        except (DaemonUnavailable, RequestError) as error:
            return str(error)
        if self.geometry is None and not connection.welcome.ready:
            return "the model is being loaded"
        return None

    async def tokenize(self, request: TokenizeRequest) -> TokenizeReply:
        """The tokens of a text or chat. Raises RequestError and DaemonUnavailable."""
        return await self._ask(request, TokenizeReply)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False
    ) -> str:
        """The text of tokens. Raises RequestError and DaemonUnavailable."""
        request = DetokenizeRequest(
            client_request_id=self.new_request_id(),
            token_ids=list(token_ids),
            skip_special_tokens=skip_special_tokens,
        )
        return (await self._ask(request, DetokenizeReply)).text

    def tell(self, message: HttpSpan) -> None:
        """Sends what nothing answers, if there is a connection now."""
        if self._connection is not None:
            self._connection.tell(message)

    def close(self) -> None:
        """Hangs up; the daemon cancels what is open."""
        if self._connection is not None:
            self._connection.close()

    async def _ask(
        self, request: TokenizeRequest | DetokenizeRequest, kind: type[_Answer]
    ) -> _Answer:
        until = now_ns() + int(QUESTION_TIMEOUT_S * NS_PER_S)
        exchange = AsyncRequestExchange(self.connection)
        try:
            await exchange.send(Question(request), until)
            reply = await exchange.receive(until)
            if reply is not None:
                exchange.forget(request.client_request_id)
        finally:
            exchange.close()
        return expect_reply(reply, kind, QUESTION_TIMEOUT_S)
