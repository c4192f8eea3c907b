"""A gateway under test, what is behind it, and clients of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fake_launcher import FakeLauncher
from fake_text_edge import FakeTextEdge
from http_client import Answer, HttpClient
from metrics_reader import Page, read_page

from pillion.actors.gateway.gateway import Gateway


class GatewayRig:
    """The gateway, what is behind it, and clients of it."""

    def __init__(
        self, gateway: Gateway, edge: FakeTextEdge, launcher: FakeLauncher, path: Path
    ) -> None:
        self.gateway = gateway
        self.launcher = launcher
        self.edge = edge
        self.path = path
        self._clients: list[HttpClient] = []

    async def client(self) -> HttpClient:
        client = await HttpClient.connect(self.path)
        self._clients.append(client)
        return client

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return await (await self.client()).ask("POST", path, body, headers)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return await (await self.client()).ask("GET", path, headers=headers)

    async def metrics(self) -> Page:
        """What it counts, as the launcher adds it up."""
        answer = await self.get("/metrics")
        assert answer.status == 200, answer
        return read_page(answer.body.decode())

    async def chat(self, text: str, **fields: Any) -> Answer:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, prompt: Any, **fields: Any) -> Answer:
        return await self.post("/v1/completions", {"prompt": prompt, **fields})

    async def edge_sees(self, what: str, holds: Callable[[], bool]) -> None:
        """Waits for the fake edge, while the gateway's loop goes on."""
        await asyncio.to_thread(self.edge.wait, what, holds)

    def close(self) -> None:
        for client in self._clients:
            client.hang_up()


StartRig = Callable[..., Awaitable[GatewayRig]]
