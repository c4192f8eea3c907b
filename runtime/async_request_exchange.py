"""The requests of one caller and their replies, on whichever connection carries them; for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import GenerateRequest
from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.pending_requests import PendingRequests
from pillion.runtime.reply_queue import ReplyQueue
from pillion.runtime.resumable import MAX_LOSSES, Question, lost_for_good


class AsyncRequestExchange(PendingRequests[AsyncConnection]):
    """Sends requests and receives their replies. After a lost connection it asks for the rest on another."""

    def __init__(
        self,
        connect: Callable[[int | None], Awaitable[AsyncConnection]],
        max_losses: int = MAX_LOSSES,
    ) -> None:
        """`connect` gives a living connection, at the latest at the time that it is told, or raises.

        A request that is lost more often than `max_losses` in a row (see `Resumable`) is given up.
        """
        super().__init__(max_losses)
        self._connect = connect
        self._replies = ReplyQueue()

    async def send(self, message: GenerateRequest | Question, until_ns: int | None = None) -> None:
        """Sends a request. Raises DaemonUnavailable, and InvalidRequest for what cannot be sent."""
        entry = self._entry(message)
        request_id = entry.request.client_request_id
        if self._connection is None:
            self._connection = await self._connect(until_ns)
        self._open[request_id] = entry
        try:
            await self._connection.submit(request_id, entry.request, self._replies.put)
        except DaemonUnavailable as error:
            await self._attach_again(ConnectionLost(str(error), not error.may_pass), until_ns)
        except BaseException:
            self.forget(request_id)
            raise

    async def receive(self, until_ns: int | None) -> DaemonToClient | None:
        """The next reply to any of the requests, or None when `until_ns` has come.

        Raises DaemonUnavailable when the connection was lost and no other can be had.
        """
        while True:
            while (reply := self._replies.get()) is None:
                if until_ns is None:
                    await self._replies.arrival()
                elif not await self._arrives(until_ns):
                    return None
            if not isinstance(reply, ConnectionLost):
                return self._note(reply)
            await self._attach_again(reply, until_ns)

    def receive_more(self) -> list[DaemonToClient]:
        """Replies that are there already, up to the loss of a connection."""
        replies: list[DaemonToClient] = []
        while (reply := self._replies.get()) is not None:
            if isinstance(reply, ConnectionLost):
                # Behind it comes nothing; the next `receive` must find it.
                self._replies = ReplyQueue()
                self._replies.put(reply)
                break
            replies.append(self._note(reply))
        return replies

    async def _arrives(self, until_ns: int) -> bool:
        """Waits for another reply; False if `until_ns` comes first."""
        try:
            async with asyncio.timeout(max(0.0, (until_ns - now_ns()) / NS_PER_S)):
                await self._replies.arrival()
        except TimeoutError:
            return False
        return True

    async def _attach_again(self, lost: ConnectionLost, until_ns: int | None) -> None:
        """Sends everything that is open again, on a connection that stays alive as long as that takes."""
        while True:
            if lost.final:
                raise lost.error()
            try:
                connection = await self._connect(until_ns)
            except DaemonUnavailable as error:
                raise lost_for_good(lost, error) from error
            self._move_to(connection)
            self._replies = ReplyQueue()
            try:
                for request_id, again in self._open_again(lost):
                    await connection.submit(request_id, again, self._replies.put)
                return
            except DaemonUnavailable as error:
                lost = ConnectionLost(str(error), not error.may_pass)
