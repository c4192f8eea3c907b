"""A gateway in the test's own loop, with a fake text edge behind it."""

import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_actor import geometry
from fake_launcher import FakeLauncher
from fake_text_edge import FakeTextEdge
from gateway_rig import GatewayRig, StartRig

from pillion.actors.gateway.app import make_app
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.http_server import HttpServer
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import RunDir


@pytest.fixture
def short_root() -> Iterator[Path]:
    """A directory with a short path, as socket names need."""
    root = Path(tempfile.mkdtemp(prefix="pillion-", dir="/tmp"))
    yield root
    shutil.rmtree(root)


@pytest.fixture
async def start_rig(short_root: Path) -> AsyncIterator[StartRig]:
    """Starts gateways with settings of the test's own."""
    started: list[tuple[GatewayRig, HttpServer]] = []

    async def start(**settings: Any) -> GatewayRig:
        config = EngineConfig(model="m", served_model_name="fake", http="0", **settings)
        run_dir = RunDir(short_root)
        gateway = Gateway(config, run_dir)  # may raise, and the edge is a thread
        edge = FakeTextEdge(run_dir.client_socket)
        gateway.link.geometry = geometry(1)
        server = HttpServer(make_app(gateway))
        launcher = FakeLauncher()
        rig = GatewayRig(gateway, edge, launcher, short_root / "h.sock")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(rig.path))
            await server.listen(listening.detach())
        started.append((rig, server))
        return rig

    yield start
    for rig, server in started:
        rig.close()
        await server.close()
        rig.gateway.link.close()
        rig.launcher.close()
        rig.edge.stop()


@pytest.fixture
async def rig(start_rig: StartRig) -> GatewayRig:
    """A gateway with the usual settings."""
    return await start_rig()
