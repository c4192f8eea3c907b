"""What the launcher knows about its daemon, and shows to whoever asks for the status."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

import pillion
from pillion.messages.control import (
    ActorStats,
    ActorStatus,
    DaemonStatus,
    EngineGeometry,
    ProbeReply,
    StartPhase,
)
from pillion.runtime.child import Child
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.config import EngineConfig
from pillion.runtime.proc_files import age_s, cpu_seconds, ended_cpu_seconds, rss_bytes
from pillion.runtime.progress import Sign
from pillion.runtime.stats_book import StatsBook

ProgressOf = Callable[[Child], Sign]
DaemonState = Literal["starting", "ready", "recovering", "draining", "stopping", "failed"]


@dataclass(slots=True)
class _Deaths:
    """Of one actor, as far as it was to be replaced."""

    kinds: dict[str, int] = field(default_factory=dict)
    last: str = ""
    last_ns: int = 0


class StatusBoard:
    """The daemon's state and what its actors have reported."""

    def __init__(self, config: EngineConfig) -> None:
        self.state: DaemonState = "starting"
        self.geometry: EngineGeometry | None = None
        self.failure: str | None = None
        self.ready_after_s: float | None = None
        self._config = config
        self._phases: list[StartPhase] = []
        self._stats = StatsBook()
        self._deaths: dict[str, _Deaths] = {}

    @property
    def model(self) -> str:
        """The model's name as clients know it."""
        return self._config.served_model_name or self._config.model

    def note_stats(self, stats: ActorStats) -> None:
        """Keeps an actor's latest counters and gauges, and how fast the counters grow."""
        self._stats.note(stats)

    def note_early_stats(self, stats: ActorStats) -> None:
        """The same for what an actor says before it is its turn to report."""
        self._stats.note(stats, in_turn=False)

    def note_phase(self, phase: StartPhase) -> None:
        """Keeps where the time of each actor's latest start went."""
        self._phases = [
            known
            for known in self._phases
            if known.actor != phase.actor or known.epoch >= phase.epoch
        ]
        self._phases.append(phase)

    def note_ready(self) -> None:
        """Everything can be served, for the first time or again."""
        self.state = "ready"
        if self.ready_after_s is None:
            self.ready_after_s = age_s(os.getpid())

    def note_death(self, child: Child) -> None:
        """Keeps how a life ended that another one follows."""
        deaths = self._deaths.setdefault(child.name, _Deaths())
        deaths.kinds[child.ending_kind] = deaths.kinds.get(child.ending_kind, 0) + 1
        deaths.last = child.how_it_ended()
        deaths.last_ns = now_ns()

    def steps_if_open(self, epoch: int) -> int | None:
        """How many steps this life of the scheduler has had answered; None if no request is open there."""
        stats = self._stats.latest("scheduler", epoch)
        if stats is None or not stats.gauges.get("open"):
            return None
        return int(stats.counters.get("steps", 0))

    def not_ready(self, children: Collection[Child]) -> str | None:
        """Why a request would wait or fail now; None if it would run."""
        match self.state:
            case "ready":
                return None
            case "recovering":
                return self._what_is_missing(children)
            case "failed":
                return self.failure
            case "draining" | "stopping":
                return "the daemon is stopping"
            case "starting":
                missing = [child.name for child in children if child.state != "running"]
                return f"the daemon starts: waiting for {', '.join(missing) or 'the model'}"

    def probe(self, children: Collection[Child]) -> ProbeReply:
        """The two answers of a probe."""
        reason = self.not_ready(children)
        return ProbeReply(is_live=self.state != "failed", is_ready=reason is None, reason=reason)

    def status(self, children: Collection[Child], progress: ProgressOf) -> DaemonStatus:
        """Everything that `pillion status` and the metrics show."""
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
            model=self.model,
            uptime_s=age_s(pid),
            ready_after_s=self.ready_after_s,
            start_phases=[(each.actor, each.phase, each.duration_ms) for each in self._phases],
            geometry=self._geometry_by_now(),
            actors=[launcher, *(self._actor(child, progress) for child in children)],
            failure=self.failure,
            not_ready=self.not_ready(children),
            ended_cpu_seconds=ended_cpu_seconds(),
        )

    def _geometry_by_now(self) -> EngineGeometry | None:
        """With the memory of the graphs that the worker has captured since it was ready."""
        geometry = self.geometry
        if geometry is None:
            return None
        stats = self._stats.latest("gpu_worker", geometry.epoch)
        taken_bytes = stats.gauges.get("graphs_bytes") if stats else None
        return replace(geometry, graphs_bytes=taken_bytes) if taken_bytes else geometry

    def _what_is_missing(self, children: Collection[Child]) -> str:
        missing = [child.name for child in children if child.state != "running"]
        causes = [self._deaths[name].last for name in missing if name in self._deaths]
        told = f": {'; '.join(causes)}" if causes else ""
        return f"recovering {', '.join(missing) or 'the model'}{told}"

    def _actor(self, child: Child, progress: ProgressOf) -> ActorStatus:
        stats = self._stats.latest(child.name, child.epoch)
        stamp_ns = progress(child).stamp_ns if child.alive else 0
        state: str = child.state
        if state == "running" and self.state == "draining":
            state = "draining"
        deaths = self._deaths.get(child.name)
        return ActorStatus(
            name=child.name,
            state=state,
            pid=child.pid if child.alive else None,
            epoch=child.epoch,
            rss_bytes=rss_bytes(child.pid) if child.alive else 0,
            cpu_seconds=cpu_seconds(child.pid) if child.alive else 0.0,
            counters=stats.counters if stats else {},
            gauges=stats.gauges if stats else {},
            restarts=dict(deaths.kinds) if deaths else {},
            last_death=deaths.last if deaths else None,
            last_death_s_ago=(now_ns() - deaths.last_ns) / NS_PER_S if deaths else None,
            rates=self._stats.rates(child.name, child.epoch, now_ns()),
            totals=self._stats.totals(child.name),
            stamp_age_s=max(0, now_ns() - stamp_ns) / NS_PER_S if stamp_ns else None,
        )
