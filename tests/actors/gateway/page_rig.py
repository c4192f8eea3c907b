"""The page in a browser, with a gateway, a fake text edge and a fake launcher behind it."""

import socket
from collections.abc import Awaitable, Callable

from browser import Browser
from gateway_rig import GatewayRig
from live_launcher import LiveLauncher

from pillion.actors.gateway.app import make_app
from pillion.actors.gateway.http_server import HttpServer


class PageRig:
    """Everything that a test of the page has to do with."""

    def __init__(self, rig: GatewayRig, launcher: LiveLauncher, browser: Browser) -> None:
        self.edge = rig.edge
        self.launcher = launcher
        self.browser = browser
        self._rig = rig
        self._server: HttpServer | None = None
        self._port = 0

    async def serve(self) -> None:
        """Listens, at the same port as before."""
        self._server = HttpServer(make_app(self._rig.gateway))
        with socket.create_server(("127.0.0.1", self._port)) as listening:
            self._port = listening.getsockname()[1]
            await self._server.listen(listening.detach())

    async def stop_serving(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def open(self) -> None:
        await self.browser.open(f"http://127.0.0.1:{self._port}/")

    async def say(self, text: str) -> None:
        """Types a message and sends it."""
        await self.browser.type("#prompt", text + "\n")

    async def answered(self, text: str) -> None:
        """Waits for the end of an answer that holds this text."""
        await self.browser.until_text(".assistant[aria-busy=false]", text)

    async def edge_sees(self, what: str, count: int) -> None:
        """Waits until the fake edge has so many `requests` or `cancelled`."""
        await self._rig.edge_sees(f"{count} {what}", lambda: len(getattr(self.edge, what)) == count)


StartPage = Callable[..., Awaitable[PageRig]]
