"""The connection of an `AsyncClient`: made on first use, and again when it was lost or the loop is another."""

import asyncio

from pillion.runtime.async_connection import AsyncConnection
from pillion.runtime.clock import now_ns
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.link import Link
from pillion.runtime.link_options import LinkOptions
from pillion.runtime.patience import REFUSED_PAUSE_S


class AsyncClientLink(Link[AsyncConnection]):
    """Shared by the tasks of a loop."""

    def __init__(self, options: LinkOptions) -> None:
        super().__init__(options)
        self._was_connected = False
        self._opening: asyncio.Lock | None = None

    async def connected(self, until_ns: int | None = None) -> AsyncConnection:
        """A living connection. While the daemon lives it is waited for.

        For the connect timeout at the longest, after a lost connection for the reattach timeout.
        """
        connection = self._connection
        if self._takes_requests(connection) and connection.loop is asyncio.get_running_loop():
            return connection
        options = self._options
        timeout_s = options.reattach_timeout_s if self._was_connected else options.connect_timeout_s
        patience = options.patience(timeout_s, until_ns)
        if connection is not None and connection.is_ending and self._replicas.ends_round:
            await asyncio.sleep(REFUSED_PAUSE_S)
        while True:
            try:
                return await self._connect_once()
            except DaemonUnavailable as error:
                if self._closed or self._replicas.begins_round:
                    await asyncio.sleep(patience.pause_s(error, now_ns()))

    def close(self) -> None:
        """Ends the connection; no other is made."""
        self._closed = True
        self._hang_up()

    async def _connect_once(self) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is not None and connection.loop is not loop:
            if not connection.loop.is_closed() and connection.lost is None:
                raise RuntimeError(
                    "this AsyncClient is in use on another event loop: make one client per loop, or use"
                    " Client, which threads may share"
                )
            self._connection = self._opening = None
            self._was_connected, self._left = False, []
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            self._check_open()
            if self._connection is not None and self._connection.is_ending:
                self._leave(self._connection)
            if self._connection is None or self._connection.lost is not None:
                self._connection = await self._open()
                self._was_connected = True
                if self._closed:  # meanwhile, by another task
                    self._connection.close()
                    self._check_open()
            return self._connection

    async def _open(self) -> AsyncConnection:
        try:
            return await AsyncConnection.open(
                self._replicas.path,
                self._options.client_name,
                self._options.fairness_key,
                self._options.connect_timeout_s,
                leaves_ending=self._options.leaves_ending,
            )
        except DaemonUnavailable:
            self._replicas.leave()
            raise
