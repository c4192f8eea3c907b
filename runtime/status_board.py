"""What the launcher knows about its daemon, and shows to whoever asks for the status."""

import os
from collections.abc import Iterable
from typing import Literal

import pillion
from pillion.messages.control import (
    ActorStats,
    ActorStatus,
    DaemonStatus,
    EngineGeometry,
    StartPhase,
)
from pillion.runtime.config import EngineConfig
from pillion.runtime.proc_files import age_s, cpu_seconds, rss_bytes
from pillion.runtime.supervision import Child

DaemonState = Literal["starting", "ready", "recovering", "draining", "stopping", "failed"]


class StatusBoard:
    """The daemon's state and what its actors have reported."""

    def __init__(self, config: EngineConfig) -> None:
        self.state: DaemonState = "starting"
        self.geometry: EngineGeometry | None = None
        self.failure: str | None = None
        self.ready_after_s: float | None = None
        self._config = config
        self._phases: list[tuple[str, str, float]] = []
        self._stats: dict[str, ActorStats] = {}

    def note_stats(self, stats: ActorStats) -> None:
        """Keeps an actor's latest counters and gauges."""
        self._stats[stats.actor] = stats

    def note_phase(self, phase: StartPhase) -> None:
        """Keeps where start-up time went."""
        self._phases.append((phase.actor, phase.phase, phase.duration_ms))

    def note_ready(self) -> None:
        """Everything can be served, for the first time or again."""
        self.state = "ready"
        if self.ready_after_s is None:
            self.ready_after_s = age_s(os.getpid())

    def status(self, children: Iterable[Child]) -> DaemonStatus:
        """Everything that `pillion status` shows."""
        pid = os.getpid()
        launcher = ActorStatus(
            name="launcher",
            state="running",
            pid=pid,
            epoch=1,
            rss_bytes=rss_bytes(pid),
            cpu_seconds=cpu_seconds(pid),
            counters={},
            gauges={},
        )
        return DaemonStatus(
            version=pillion.__version__,
            name=self._config.name,
            pid=pid,
            state=self.state,
            model=self._config.served_model_name or self._config.model,
            uptime_s=age_s(pid),
            ready_after_s=self.ready_after_s,
            start_phases=list(self._phases),
            geometry=self.geometry,
            actors=[launcher, *(self._actor(child) for child in children)],
            failure=self.failure,
        )

    def _actor(self, child: Child) -> ActorStatus:
        stats = self._stats.get(child.name)
        state: str = child.state
        if state == "running" and self.state == "draining":
            state = "draining"
        return ActorStatus(
            name=child.name,
            state=state,
            pid=child.pid if child.alive else None,
            epoch=child.epoch,
            rss_bytes=rss_bytes(child.pid) if child.alive else 0,
            cpu_seconds=cpu_seconds(child.pid) if child.alive else 0.0,
            counters=stats.counters if stats else {},
            gauges=stats.gauges if stats else {},
        )
