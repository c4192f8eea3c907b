"""What a gateway hears from a launcher, without one: itself, and whoever a test lets report."""

from pathlib import Path

from pillion.messages.control import ActorStats, ActorStatus, DaemonStatus, StatusRequest
from pillion.messages.inboxes import ControlReply, ControlRequest
from pillion.runtime.control_socket import ControlServer
from pillion.runtime.stats_book import StatsBook


class FakeLauncher:
    """Keeps books as the real one does."""

    def __init__(self) -> None:
        self.stats: dict[str, ActorStats] = {}
        self._book = StatsBook()
        self._server = ControlServer(self._answer)

    async def listen(self, path: Path) -> None:
        await self._server.bind(path)

    def report(self, stats: ActorStats) -> None:
        """An actor reports."""
        self.stats[stats.actor] = stats
        self._book.note(stats)

    def close(self) -> None:
        self._server.close()

    def _answer(self, request: ControlRequest) -> ControlReply:
        assert isinstance(request, StatusRequest)
        if request.stats is not None:
            self.report(request.stats)
        return self.status()

    def status(self) -> DaemonStatus:
        """Of a daemon whose actors are those that have reported."""
        return daemon_status([self._status(stats) for stats in self.stats.values()])

    def _status(self, stats: ActorStats) -> ActorStatus:
        return ActorStatus(
            name=stats.actor,
            state="running",
            pid=1,
            epoch=stats.epoch,
            rss_bytes=1000,
            cpu_seconds=2.0,
            counters=stats.counters,
            gauges=stats.gauges,
            totals=self._book.totals(stats.actor),
            stamp_age_s=0.5,
        )


def daemon_status(actors: list[ActorStatus]) -> DaemonStatus:
    """Of a daemon with these."""
    return DaemonStatus(
        version="1",
        name="d",
        pid=1,
        state="ready",
        model="fake",
        uptime_s=60.0,
        ready_after_s=1.0,
        start_phases=[],
        geometry=None,
        actors=actors,
        failure=None,
    )
