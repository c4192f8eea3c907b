"""Metrics of each actor: whether it lives, what it takes, and all that it counts, under its own names."""

import re
from typing import Final

from pillion.actors.gateway.daemon_numbers import DaemonNumbers
from pillion.actors.gateway.exposition import Exposition

# exited: without a word; failed: with a reason of its own; hung: killed for want of progress.
RESTART_REASONS: Final = ("killed", "exited", "failed", "hung")

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")


def write_actors(page: Exposition, numbers: DaemonNumbers) -> None:
    """State, memory, time, restarts and progress by actor."""
    actors = numbers.status.actors
    page.family(
        "pillion_actor_up",
        "gauge",
        "Whether the actor runs",
        [("", {"actor": each.name}, int(each.state == "running")) for each in actors],
    )
    page.family(
        "pillion_actor_restarts_total",
        "counter",
        "Lives of the actor that others followed, by how they ended",
        [
            ("", {"actor": each.name, "reason": reason}, each.restarts.get(reason, 0))
            for each in actors
            for reason in RESTART_REASONS
        ],
    )
    page.family(
        "pillion_actor_stamp_age_seconds",
        "gauge",
        "Since its loop came round last or a step reached its next layer; idle loops come round within 2.5 s",
        [
            ("", {"actor": each.name}, each.stamp_age_s)
            for each in actors
            if each.stamp_age_s is not None
        ],
    )
    page.family(
        "pillion_actor_memory_bytes",
        "gauge",
        "Resident memory",
        [("", {"actor": each.name}, each.rss_bytes) for each in actors],
    )
    page.family(
        "pillion_actor_cpu_seconds_total",
        "counter",
        "Processor time of the actor's present life",
        [("", {"actor": each.name}, each.cpu_seconds) for each in actors],
    )


def write_all_counters(page: Exposition, numbers: DaemonNumbers) -> None:
    """Whatever the actors count, as `pillion status` shows it, but over all lives."""
    for actor in numbers.engine_actors:
        for name, value in actor.totals.counters.items():
            page.one(_metric(actor.name, name, "_total"), "counter", name, value)
        for name, gauge in numbers.gauges(actor.name).items():
            page.one(_metric(actor.name, name, ""), "gauge", name, gauge)


def _metric(actor: str, name: str, suffix: str) -> str:
    return f"pillion_{actor}_{_NOT_IN_NAMES.sub('_', name)}{suffix}"
