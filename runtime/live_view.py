"""What the page of the HTTP server and `pillion top` show of a daemon, made from its status."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pillion.messages.control import ActorStatus, DaemonStatus
from pillion.runtime.clock import NS_PER_MS

Gauges = Mapping[str, int | float | str]

_NOBODY: Final = ActorStatus(
    name="", state="", pid=None, epoch=0, rss_bytes=0, cpu_seconds=0.0, counters={}, gauges={}
)


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences: one for each answer that a request asks for."""

    running: int
    waiting: int
    max_running: Annotated[int | None, Meta(description="null before the model is loaded")]


class KvBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of the KV cache."""

    used: Annotated[int, Meta(description="held by open sequences")]
    cached: Annotated[int, Meta(description="hold prefixes, and are taken as soon as needed")]
    total: int


class TokenRates(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second, over about the last second."""

    prompt: Annotated[float, Meta(description="computed; those that were cached do not count")]
    generated: float


class StepSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a step goes: means of about the last second."""

    per_second: Annotated[float, Meta(description="steps")]
    prepare_ms: float
    execute_ms: float
    output_ms: float
    bubble_ms: Annotated[
        float, Meta(description="none was launched although a sequence could go on")
    ]


class ActorView(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the daemon."""

    name: str
    state: Annotated[
        str,
        Meta(description="`starting`, `running`, `draining`, `exited`, `failed` or `lost`"),
    ]
    pid: int | None
    life: Annotated[int, Meta(description="1, and one more with each restart")]
    memory_bytes: Annotated[int, Meta(description="resident")]
    cpu_seconds: Annotated[float, Meta(description="processor time of this life")]
    restarts: Annotated[
        dict[str, int],
        Meta(description="by how the life before ended: `killed`, `exited`, `failed`, `hung`"),
    ]
    last_death: str | None
    last_death_s_ago: float | None


class LiveView(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon at this moment."""

    name: str
    version: str
    model: str
    device: Annotated[str | None, Meta(description="null before the model is loaded")]
    state: Annotated[
        str,
        Meta(
            description="`starting`, `ready`, `recovering`, `draining`, `stopping` or `failed`",
        ),
    ]
    not_ready: Annotated[
        str | None, Meta(description="why a request would wait or fail now; null: it would run")
    ]
    uptime_s: float
    weights_bytes: int
    kv_bytes: int
    queue: Queue
    kv_blocks: Annotated[KvBlocks | None, Meta(description="null before there are any")]
    tokens_per_second: TokenRates
    step: Annotated[StepSplit | None, Meta(description="null while no step runs")]
    actors: list[ActorView]


def live_view(status: DaemonStatus) -> LiveView:
    """The view of this status."""
    actors = {actor.name: actor for actor in status.actors if actor.pid is not None}
    scheduler = actors.get("scheduler", _NOBODY)
    worker = actors.get("gpu_worker", _NOBODY)
    geometry = status.geometry
    return LiveView(
        name=status.name,
        version=status.version,
        model=status.model,
        device=geometry.device if geometry else None,
        state=status.state,
        not_ready=status.failure or status.not_ready,
        uptime_s=status.uptime_s,
        weights_bytes=geometry.weights_bytes if geometry else 0,
        kv_bytes=geometry.kv_bytes if geometry else 0,
        queue=Queue(
            running=int(scheduler.gauges.get("running", 0)),
            waiting=int(scheduler.gauges.get("waiting", 0)),
            max_running=geometry.max_num_seqs if geometry else None,
        ),
        kv_blocks=kv_blocks(actors.get("kv_manager", _NOBODY).gauges, scheduler.gauges),
        tokens_per_second=TokenRates(
            prompt=worker.rates.get("prefill_tokens", 0.0),
            generated=scheduler.rates.get("generated_tokens", 0.0),
        ),
        step=_step_split(worker.rates),
        actors=[_actor(actor) for actor in status.actors],
    )


def kv_blocks(kv_manager: Gauges, scheduler: Gauges) -> KvBlocks | None:
    """Summed over the groups, from the KV manager's gauges `<state>_blocks_<group>`.

    Of those that are leased, `leased_blocks` still lie in the scheduler's hand; as the two report one after
    the other, that may be more than there are.
    """
    sums = {
        state: sum(
            int(count) for name, count in kv_manager.items() if name.startswith(f"{state}_blocks_")
        )
        for state in ("free", "leased", "referenced", "cached")
    }
    total = sum(sums.values())
    if not total:
        return None
    taken = max(0, sums["leased"] - int(scheduler.get("leased_blocks", 0)))
    return KvBlocks(used=taken + sums["referenced"], cached=sums["cached"], total=total)


def _step_split(rates: dict[str, float]) -> StepSplit | None:
    """From the worker's counters: nanoseconds and steps, both per second."""
    steps = rates.get("steps", 0.0)
    if not steps:
        return None

    def per_step(name: str) -> float:
        return rates.get(name, 0.0) / steps / NS_PER_MS

    return StepSplit(
        per_second=steps,
        prepare_ms=per_step("prepare_ns"),
        execute_ms=per_step("execute_ns"),
        output_ms=per_step("output_ns"),
        bubble_ms=per_step("bubble_ns"),
    )


def _actor(actor: ActorStatus) -> ActorView:
    return ActorView(
        name=actor.name,
        state=actor.state,
        pid=actor.pid,
        life=actor.epoch,
        memory_bytes=actor.rss_bytes,
        cpu_seconds=actor.cpu_seconds,
        restarts=actor.restarts,
        last_death=actor.last_death,
        last_death_s_ago=actor.last_death_s_ago,
    )
