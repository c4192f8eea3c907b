"""A chaos run: the same requests at an undisturbed daemon and at one whose actors are killed all the time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final

import msgspec

from pillion.messages.control import DaemonStatus
from pillion.runtime.async_client import AsyncClient
from pillion.runtime.bench.engine import private_daemon, status_of
from pillion.runtime.chaos.answers import Answer
from pillion.runtime.chaos.clients import Clients
from pillion.runtime.chaos.load import ChaosRequest, distinct_requests, in_random_order
from pillion.runtime.chaos.pauses import pauses_s
from pillion.runtime.chaos.report import ChaosReport, compare
from pillion.runtime.chaos.strikes import Blow, Striker, make_schedule
from pillion.runtime.client import Client
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import DaemonProcess
from pillion.runtime.errors import PillionError

_SETTLE_DEADLINE_S: Final = 30.0
_SETTLE_POLL_S: Final = 0.2
# What must be zero when no client wants anything, by actor.
_MUST_BE_ZERO: Final = {"detokenizer": "open_requests", "scheduler": "open"}
_UNLIMITED: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """What a run is made of; the same settings give the same requests and the same schedule."""

    seed: int = 0
    num_requests: int = 200
    num_distinct: int = 100
    num_strikes: int = 20
    stop_share: float = 0.1
    actors: tuple[str, ...] = ("kv_manager", "scheduler", "detokenizer", "gpu_worker")
    window: int = 16
    max_tokens: int = 18
    stuck_after_s: float = 120.0


@dataclass(slots=True)
class _Disturbed:
    """What came of the run with strikes."""

    answers: list[Answer]
    blows: list[Blow]
    restarts: dict[str, int]
    left_open: dict[str, float]
    failure: str | None


def run_chaos(
    config: EngineConfig, settings: ChaosSettings, say: Callable[[str], None]
) -> ChaosReport:
    """Runs both daemons, one after the other, and compares. `say` gets lines about how it goes."""
    distinct = distinct_requests(settings.seed, settings.num_distinct, settings.max_tokens)
    started = time.monotonic()
    say(f"{len(distinct)} different requests, undisturbed")
    with private_daemon(config, captured=False) as daemon:
        expected = asyncio.run(_undisturbed(daemon, distinct, settings))
    undisturbed_s = time.monotonic() - started
    requests = in_random_order(settings.seed, distinct, settings.num_requests)
    say(f"{len(requests)} requests and {settings.num_strikes} strikes")
    started = time.monotonic()
    unlimited = msgspec.structs.replace(config, max_restarts=_UNLIMITED)
    with private_daemon(unlimited, captured=False) as daemon:
        disturbed = asyncio.run(_disturbed(daemon, requests, settings, say))
    faults, num_without_end = compare(expected, disturbed.answers)
    return ChaosReport(
        settings=asdict(settings),
        num_requests=len(requests),
        num_distinct=len(distinct),
        undisturbed_s=undisturbed_s,
        disturbed_s=time.monotonic() - started,
        blows=disturbed.blows,
        faults=faults,
        num_without_end=num_without_end,
        restarts=disturbed.restarts,
        left_open=disturbed.left_open,
        pauses=pauses_s(disturbed.blows, disturbed.answers),
        daemon_failure=disturbed.failure,
    )


@asynccontextmanager
async def _clients_of(daemon: DaemonProcess, settings: ChaosSettings) -> AsyncIterator[Clients]:
    path = daemon.directory.client_socket
    # As the daemon's own restarts: here it is never the request that ends the text edge.
    async with AsyncClient(path, max_losses=_UNLIMITED) as client:
        with Client(path, max_losses=_UNLIMITED) as sync_client:
            yield Clients(sync_client, client, settings.stuck_after_s)


async def _undisturbed(
    daemon: DaemonProcess, distinct: Sequence[ChaosRequest], settings: ChaosSettings
) -> dict[int, Answer]:
    """The answer to each request, also of those whose client will leave. Raises PillionError if one fails."""
    async with _clients_of(daemon, settings) as clients:
        whole = [replace(request, cancel_after=None) for request in distinct]
        answers = await clients.run(whole, settings.window)
    for answer in answers:
        if answer.error is not None:
            raise PillionError(f"an undisturbed request failed: {answer.error}")
    for actor in status_of(daemon).actors:
        if actor.epoch > 1:
            raise PillionError(f"{actor.name} was restarted although nobody had struck it")
    return {answer.request.index: answer for answer in answers}


async def _disturbed(
    daemon: DaemonProcess,
    requests: Sequence[ChaosRequest],
    settings: ChaosSettings,
    say: Callable[[str], None],
) -> _Disturbed:
    schedule = make_schedule(
        settings.seed,
        settings.num_strikes,
        settings.num_requests,
        settings.actors,
        settings.stop_share,
    )
    failure = None
    async with _clients_of(daemon, settings) as clients:
        striker = Striker(
            schedule, lambda: asyncio.to_thread(status_of, daemon), clients.wait_finished
        )
        striking = asyncio.create_task(striker.run())
        telling = asyncio.create_task(_tell(clients, striker, say))
        answers = await clients.run(requests, settings.window)
        telling.cancel()
        try:
            await striking  # strikes that were due at the very end
        except PillionError as error:
            failure = str(error)
    status, left_open = await _settle(daemon)
    restarts = {actor.name: actor.epoch - 1 for actor in status.actors} if status else {}
    if status is None or status.failure is not None:
        failure = status.failure if status else "it is gone"
    return _Disturbed(answers, striker.blows, restarts, left_open, failure)


async def _tell(clients: Clients, striker: Striker, say: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(10.0)
        say(f"{clients.num_finished} requests ended, {len(striker.blows)} strikes")


async def _settle(daemon: DaemonProcess) -> tuple[DaemonStatus | None, dict[str, float]]:
    """Waits until the daemon is ready and nothing is open. Returns its state and what is left then."""
    deadline = time.monotonic() + _SETTLE_DEADLINE_S
    status: DaemonStatus | None = None
    left: dict[str, float] = {}
    while time.monotonic() < deadline:
        try:
            status = await asyncio.to_thread(status_of, daemon)
        except PillionError:
            return None, {}
        left = {
            f"{actor.name} {_MUST_BE_ZERO[actor.name]}": float(
                actor.gauges.get(_MUST_BE_ZERO[actor.name], 0)
            )
            for actor in status.actors
            if actor.name in _MUST_BE_ZERO
        }
        left = {name: value for name, value in left.items() if value}
        if status.state == "ready" and not left:
            break
        await asyncio.sleep(_SETTLE_POLL_S)
    return status, left
