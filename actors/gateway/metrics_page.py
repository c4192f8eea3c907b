"""GET /metrics: the gateway's own numbers, those of every actor, and the names that vLLM's dashboards use."""

import asyncio
import re
from typing import Final

from pillion.actors.gateway.metrics import OUTCOMES, Exposition, Histogram, Metrics
from pillion.messages.codec import FRAME_HEADER_BYTES, Codec, frame, frame_length
from pillion.messages.control import ActorStatus, DaemonStatus, StatusRequest
from pillion.messages.inboxes import ControlReply
from pillion.runtime.control_socket import MAX_REPLY_BYTES
from pillion.runtime.paths import RunDir

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
STATUS_TIMEOUT_S: Final = 1.0

# exited: without a word; failed: with a reason of its own; hung: killed for want of progress.
RESTART_REASONS: Final = ("killed", "exited", "failed", "hung")

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


async def ask_status(run_dir: RunDir) -> DaemonStatus | None:
    """The daemon's state from its launcher; None if it does not answer in time."""
    codec: Codec[ControlReply] = Codec(ControlReply)
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(run_dir.control_socket)
            try:
                writer.write(frame(codec.encode(StatusRequest())))
                length = frame_length(await reader.readexactly(FRAME_HEADER_BYTES))
                if length > MAX_REPLY_BYTES:
                    return None
                reply = codec.decode(await reader.readexactly(length))
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
        return None
    return reply if isinstance(reply, DaemonStatus) else None


def metrics_page(metrics: Metrics, status: DaemonStatus | None, model: str, ready: bool) -> bytes:
    """The page. Without a status the numbers of the other actors are missing."""
    page = Exposition()
    _write_own(page, metrics, ready)
    if status is not None:
        _write_actors(page, status)
    _write_vllm_names(page, metrics, status, model)
    return page.text()


def _write_own(page: Exposition, metrics: Metrics, ready: bool) -> None:
    counters = metrics.counters
    page.family("pillion_ready", "gauge", "Whether a request would run now", [("", {}, int(ready))])
    page.family(
        "pillion_requests_received_total",
        "counter",
        "Generations received; the outcomes and the open ones add up to this",
        [("", {}, counters["requests_received"])],
    )
    page.family(
        "pillion_requests_total",
        "counter",
        "Generations that have ended, by outcome",
        [("", {"outcome": name}, counters[f"requests_{name}"]) for name in OUTCOMES],
    )
    page.family(
        "pillion_open_requests",
        "gauge",
        "Generations that have not ended",
        [("", {}, float(metrics.gauges["open_requests"]))],
    )
    page.family(
        "pillion_http_responses_total",
        "counter",
        "Responses by route and status; 499: the client left before its response",
        [
            ("", {"route": route, "status": str(code)}, count)
            for (route, code), count in sorted(metrics.responses.items())
        ],
    )
    for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        page.family(
            f"pillion_{name}_total", "counter", name.replace("_", " "), [("", {}, counters[name])]
        )


def _write_actors(page: Exposition, status: DaemonStatus) -> None:
    actors = [actor for actor in status.actors if actor.name != "gateway"]
    page.family(
        "pillion_actor_up",
        "gauge",
        "Whether the actor runs",
        [("", {"actor": each.name}, int(each.state == "running")) for each in status.actors],
    )
    page.family(
        "pillion_actor_restarts_total",
        "counter",
        "Lives of the actor that others followed, by how they ended",
        [
            ("", {"actor": each.name, "reason": reason}, each.restarts.get(reason, 0))
            for each in status.actors
            for reason in RESTART_REASONS
        ],
    )
    page.family(
        "pillion_actor_memory_bytes",
        "gauge",
        "Resident memory",
        [("", {"actor": each.name}, each.rss_bytes) for each in status.actors],
    )
    page.family(
        "pillion_actor_cpu_seconds_total",
        "counter",
        "Processor time",
        [("", {"actor": each.name}, each.cpu_seconds) for each in status.actors],
    )
    for actor in actors:
        for name, value in actor.counters.items():
            page.family(_metric(actor.name, name, "_total"), "counter", name, [("", {}, value)])
        for name, gauge in actor.gauges.items():
            if not isinstance(gauge, str):
                page.family(_metric(actor.name, name, ""), "gauge", name, [("", {}, gauge)])


def _metric(actor: str, name: str, suffix: str) -> str:
    return f"pillion_{actor}_{_NOT_IN_NAMES.sub('_', name)}{suffix}"


def _write_vllm_names(
    page: Exposition, metrics: Metrics, status: DaemonStatus | None, model: str
) -> None:
    label = {"model_name": model}
    counters = metrics.counters
    actors = {actor.name: actor for actor in status.actors} if status is not None else {}
    scheduler = actors.get("scheduler")
    for name, gauge in (("running", "running"), ("waiting", "waiting")):
        if scheduler is not None:
            page.family(
                f"vllm:num_requests_{name}",
                "gauge",
                f"Sequences that are {name}",
                [("", label, _number(scheduler, gauge))],
            )
    usage = _kv_usage(actors.get("kv_manager"))
    if usage is not None:
        page.family(
            "vllm:kv_cache_usage_perc", "gauge", "Used part of the KV blocks", [("", label, usage)]
        )
    for name, own in (
        ("prompt_tokens", "prompt_tokens"),
        ("generation_tokens", "output_tokens"),
        ("prefix_cache_queries", "prompt_tokens"),
        ("prefix_cache_hits", "cached_prompt_tokens"),
    ):
        page.family(
            f"vllm:{name}_total", "counter", name.replace("_", " "), [("", label, counters[own])]
        )
    page.family(
        "vllm:request_success_total",
        "counter",
        "Answers by finish reason",
        [
            ("", {**label, "finished_reason": reason}, count)
            for reason, count in metrics.finish_reasons.items()
        ],
    )
    for name, histogram in (
        ("time_to_first_token_seconds", metrics.first_token),
        ("time_per_output_token_seconds", metrics.per_token),
        ("e2e_request_latency_seconds", metrics.whole),
    ):
        _write_histogram(page, f"vllm:{name}", histogram, label)


def _write_histogram(
    page: Exposition, name: str, histogram: Histogram, label: dict[str, str]
) -> None:
    samples = [(suffix, {**label, **own}, value) for suffix, own, value in histogram.samples()]
    page.family(name, "histogram", "Seconds", samples)


def _number(actor: ActorStatus, name: str) -> float:
    value = actor.gauges.get(name, 0)
    return 0.0 if isinstance(value, str) else value


def _kv_usage(kv_manager: ActorStatus | None) -> float | None:
    if kv_manager is None:
        return None
    blocks = {name: _number(kv_manager, name) for name in kv_manager.gauges if "_blocks_" in name}
    states = {name: count for name, count in blocks.items() if not name.startswith("owed_")}
    total = sum(states.values())
    # What the prefix cache alone holds is taken as soon as it is needed.
    unused = sum(count for name, count in states.items() if name.startswith(("free_", "cached_")))
    return None if not total else 1 - unused / total
