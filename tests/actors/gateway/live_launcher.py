"""The control socket of a launcher, whose answers the test chooses."""

from typing import Self

import msgspec
from fake_actor import geometry
from fake_launcher import daemon_status

from pillion.messages import inboxes
from pillion.messages.control import ActorStatus, DaemonStatus
from pillion.runtime.control_socket import ControlServer
from pillion.runtime.paths import RunDir


class LiveLauncher:
    """Answers with what its fields say, in the loop of the test."""

    def __init__(self, run_dir: RunDir) -> None:
        self.state = "ready"
        self.not_ready: str | None = None
        self.uptime_s = 100.0
        self.running = 0
        self.generated_per_s = 0.0
        self.worker_restarts: dict[str, int] = {}
        self.num_asked = 0
        self._path = run_dir.control_socket
        self._server = ControlServer(self._answer)

    async def __aenter__(self) -> Self:
        await self._server.bind(self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def _answer(self, _: inboxes.ControlRequest) -> DaemonStatus:
        self.num_asked += 1
        self.uptime_s += 1.0
        return msgspec.structs.replace(
            daemon_status([self._scheduler(), self._kv_manager(), self._worker()]),
            state=self.state,
            not_ready=self.not_ready,
            uptime_s=self.uptime_s,
            geometry=geometry(1),
        )

    def _scheduler(self) -> ActorStatus:
        return _actor(
            "scheduler",
            gauges={"running": self.running, "waiting": 0},
            rates={"generated_tokens": self.generated_per_s},
        )

    def _kv_manager(self) -> ActorStatus:
        gauges = {"free_blocks_0": 50, "referenced_blocks_0": 20, "cached_blocks_0": 30}
        return _actor("kv_manager", gauges=gauges, rates={})

    def _worker(self) -> ActorStatus:
        rates = {"steps": 10.0, "prepare_ns": 1e6, "execute_ns": 40e6, "output_ns": 2e6}
        died = bool(self.worker_restarts)
        return _actor(
            "gpu_worker",
            gauges={},
            rates={**rates, "bubble_ns": 5e5},
            restarts=self.worker_restarts,
            last_death="gpu_worker (pid 5) was killed by SIGKILL" if died else None,
            last_death_s_ago=2.0 if died else None,
        )


def _actor(
    name: str,
    *,
    gauges: dict[str, int | float | str],
    rates: dict[str, float],
    restarts: dict[str, int] | None = None,
    last_death: str | None = None,
    last_death_s_ago: float | None = None,
) -> ActorStatus:
    return ActorStatus(
        name=name,
        state="running",
        pid=10,
        epoch=1,
        rss_bytes=64 << 20,
        cpu_seconds=2.0,
        counters={},
        gauges=gauges,
        restarts=restarts or {},
        last_death=last_death,
        last_death_s_ago=last_death_s_ago,
        rates=rates,
    )
