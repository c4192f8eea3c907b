"""Pillion's own metrics of the engine: steps, the ring, the prefix cache, memory."""

from typing import Final

from pillion.actors.gateway.daemon_numbers import DaemonNumbers
from pillion.actors.gateway.exposition import Exposition, Sample, histogram_samples
from pillion.messages.control import EngineGeometry
from pillion.runtime.clock import NS_PER_S

# Of requests from all clients, over HTTP or not, as the text edge counts them.
CLIENT_OUTCOMES: Final = ("finished", "aborted", "timeout", "failed", "refused")
STAGES: Final = ("prepare", "execute", "output", "bubble")
HOPS: Final = ("admit", "plan", "first_output", "output")
BLOCK_STATES: Final = ("free", "leased", "referenced", "cached")


def write_engine(page: Exposition, numbers: DaemonNumbers) -> None:
    """All of them."""
    _write_clients(page, numbers)
    _write_steps(page, numbers)
    _write_ring(page, numbers)
    _write_cache(page, numbers)
    _write_memory(page, numbers.status.geometry)


def _write_clients(page: Exposition, numbers: DaemonNumbers) -> None:
    received = numbers.total("detokenizer", "requests_received")
    num_open = numbers.gauge("detokenizer", "open_generations")
    ended = {
        outcome: numbers.total("detokenizer", f"requests_{outcome}") for outcome in CLIENT_OUTCOMES
    }
    page.one(
        "pillion_client_requests_received_total",
        "counter",
        "Requests of all clients, over HTTP or not: those that have ended, by outcome, and the open ones",
        received,
    )
    outcomes = {**ended, "lost": max(0, received - sum(ended.values()) - num_open)}
    page.family(
        "pillion_client_requests_total",
        "counter",
        "Requests of all clients that have ended; lost: with their text edge, and taken up again",
        [("", {"outcome": outcome}, count) for outcome, count in outcomes.items()],
    )
    page.one("pillion_client_open_requests", "gauge", "Requests that go on", num_open)


def _write_steps(page: Exposition, numbers: DaemonNumbers) -> None:
    page.family(
        "pillion_step_seconds_total",
        "counter",
        "Time of the worker's host on each stage of steps; bubble: nothing launched though a sequence could go on",
        [
            ("", {"stage": stage}, numbers.total("gpu_worker", f"{stage}_ns") / NS_PER_S)
            for stage in STAGES
        ],
    )
    steps = numbers.total("gpu_worker", "steps")
    captured = numbers.total("gpu_worker", "graph_steps")
    page.family(
        "pillion_steps_total",
        "counter",
        "Steps, by whether a captured graph was replayed",
        [("", {"form": "captured"}, captured), ("", {"form": "eager"}, max(0, steps - captured))],
    )
    page.one(
        "pillion_failed_steps_total",
        "counter",
        "Steps that gave nothing",
        numbers.total("gpu_worker", "failed_steps"),
    )
    page.family(
        "pillion_step_tokens_total",
        "counter",
        "Tokens that steps computed",
        [
            ("", {"kind": kind}, numbers.total("gpu_worker", f"{kind}_tokens"))
            for kind in ("prefill", "decode")
        ],
    )


def _write_ring(page: Exposition, numbers: DaemonNumbers) -> None:
    samples: list[Sample] = []
    for hop in HOPS:
        counts = numbers.histogram("detokenizer", f"ring_{hop}_seconds")
        if counts is not None:
            samples += histogram_samples(counts, {"hop": hop})
    page.family(
        "pillion_ring_seconds",
        "histogram",
        "admit: a client's frame to the scheduler's message; plan: from there to the first plan; first_output:"
        " from there to the first token at the text edge; output: a step's answer at the worker to the text edge",
        samples,
    )


def _write_cache(page: Exposition, numbers: DaemonNumbers) -> None:
    page.family(
        "pillion_prefix_lookups_total",
        "counter",
        "Requests by why the prefix cache had no more of their prompt; none: it had all that may be cached",
        [
            ("", {"miss": reason or "none"}, count)
            for reason, count in numbers.tally("detokenizer", "cache_miss_reasons").items()
        ],
    )
    page.family(
        "pillion_prefix_tokens_total",
        "counter",
        "Tokens of prompts, by whether the prefix cache had them",
        [("", {"found": found}, count) for found, count in prompt_tokens(numbers).items()],
    )
    gauges = numbers.gauges("kv_manager")
    page.family(
        "pillion_kv_blocks",
        "gauge",
        "Blocks of the KV cache by owner; cached: taken as soon as they are needed",
        [
            (
                "",
                {"state": state},
                sum(count for name, count in gauges.items() if name.startswith(f"{state}_blocks_")),
            )
            for state in BLOCK_STATES
        ],
    )


def prompt_tokens(numbers: DaemonNumbers) -> dict[str, int | float]:
    """Tokens of prompts that were scheduled: "yes", the prefix cache had them, and "no"."""
    cached = numbers.total("scheduler", "cached_prompt_tokens")
    return {"yes": cached, "no": max(0, numbers.total("scheduler", "prompt_tokens") - cached)}


def _write_memory(page: Exposition, geometry: EngineGeometry | None) -> None:
    uses = {"weights": 0, "kv_cache": 0, "graphs": 0, "workspace": 0}
    if geometry is not None:
        uses = {
            "weights": geometry.weights_bytes,
            "kv_cache": geometry.kv_bytes,
            "graphs": geometry.graphs_bytes,
            "workspace": geometry.workspace_bytes,
        }
    page.family(
        "pillion_device_memory_bytes",
        "gauge",
        "What the worker's memory is for, as measured when it started; graphs: when the last one was captured",
        [("", {"use": use}, size) for use, size in uses.items()],
    )
    page.one(
        "pillion_device_memory_size_bytes",
        "gauge",
        "Memory of the device; 0 on the CPU",
        0 if geometry is None else geometry.device_bytes,
    )
