"""Metrics of the HTTP server, all its processes together."""

import resource
from collections.abc import Iterable

from pillion.actors.gateway.daemon_numbers import DaemonNumbers
from pillion.actors.gateway.exposition import Exposition, Sample, histogram_samples
from pillion.actors.gateway.metrics import OUTCOMES
from pillion.messages.control import HistogramCounts
from pillion.runtime.proc_files import num_open_files


def write_http(page: Exposition, numbers: DaemonNumbers) -> None:
    """Generations and responses."""
    counters = numbers.gateway_totals.counters
    received = counters.get("requests_received", 0)
    ended: dict[str, int | float] = {
        outcome: counters.get(f"requests_{outcome}", 0) for outcome in OUTCOMES
    }
    num_open = sum(numbers.gauge(gateway.name, "open_requests") for gateway in numbers.gateways)
    page.one(
        "pillion_requests_received_total",
        "counter",
        "Generations asked for over HTTP: those that have ended, by outcome, and the open ones",
        received,
    )
    # What was open in a process that died has ended without having been counted.
    outcomes = {**ended, "lost": max(0, received - sum(ended.values()) - num_open)}
    page.family(
        "pillion_requests_total",
        "counter",
        "Generations over HTTP that have ended; lost: with their gateway",
        [("", {"outcome": outcome}, count) for outcome, count in outcomes.items()],
    )
    page.one("pillion_open_requests", "gauge", "Generations over HTTP that go on", num_open)
    for name in ("prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        help_text = (
            f"{name.replace('_', ' ').capitalize()} of generations over HTTP that have ended"
        )
        page.one(f"pillion_{name}_total", "counter", help_text, counters.get(name, 0))
    responses = numbers.gateway_totals.tallies.get("responses", {})
    page.family(
        "pillion_http_responses_total",
        "counter",
        "Responses by route and status; 499: the client left before its response",
        _by_route_and_status(responses),
    )
    # The names that vLLM's server has from its framework's instrumentation.
    page.family(
        "http_requests_total",
        "counter",
        "Responses by route and kind of status",
        _by_kind(responses),
    )
    page.family(
        "http_request_duration_seconds",
        "histogram",
        "From the end of a request's headers to the end of its response",
        _durations(numbers.gateway_totals.histograms),
    )


def write_process(page: Exposition, numbers: DaemonNumbers, now_s: float) -> None:
    """The usual names for a process, which here is the daemon, all actors together."""
    status = numbers.status
    pids = [gateway.pid for gateway in numbers.gateways if gateway.pid is not None]
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    page.one("process_start_time_seconds", "gauge", "Start of the daemon", now_s - status.uptime_s)
    page.one(
        "process_cpu_seconds_total",
        "counter",
        "Processor time of all actors",
        sum(actor.cpu_seconds for actor in status.actors) + status.ended_cpu_seconds,
    )
    page.one(
        "process_resident_memory_bytes",
        "gauge",
        "Memory of all actors",
        sum(actor.rss_bytes for actor in status.actors),
    )
    page.one(
        "process_open_fds",
        "gauge",
        "Open files of the HTTP server",
        sum(num_open_files(pid) for pid in pids),
    )
    page.one("process_max_fds", "gauge", "As many as it may have", limit * max(1, len(pids)))


def _by_route_and_status(responses: dict[str, int]) -> Iterable[Sample]:
    sums: dict[tuple[str, str], int] = {}
    for key, count in responses.items():
        _, route, status = key.split(" ")
        sums[route, status] = sums.get((route, status), 0) + count
    for (route, status), count in sorted(sums.items()):
        yield "", {"route": route, "status": status}, count


def _by_kind(responses: dict[str, int]) -> Iterable[Sample]:
    sums: dict[tuple[str, str, str], int] = {}
    for key, count in responses.items():
        method, route, status = key.split(" ")
        kind = (route, method, f"{status[0]}xx")
        sums[kind] = sums.get(kind, 0) + count
    for (route, method, status), count in sorted(sums.items()):
        yield "", {"handler": route, "method": method, "status": status}, count


def _durations(histograms: dict[str, HistogramCounts]) -> Iterable[Sample]:
    for key, counts in sorted(histograms.items()):
        method, route = key.split(" ")
        yield from histogram_samples(counts, {"handler": route, "method": method})
