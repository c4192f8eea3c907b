"""`pillion status`: how a daemon is doing."""

import argparse
import contextlib
import sys
from collections.abc import Iterable

import msgspec

from pillion.messages.control import (
    ActorStatus,
    DaemonStatus,
    EngineGeometry,
    ProbeReply,
    ProbeRequest,
    StatusRequest,
)
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.errors import DaemonUnavailable, PillionError
from pillion.runtime.log import tail_offset
from pillion.runtime.paths import RunDir, run_dir
from pillion.runtime.silence import why_silent

_MIB = 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which daemon, and for whom."""
    parser.add_argument("--name", default="default", help="name of the daemon (default: default)")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    parser.add_argument(
        "--probe",
        choices=["live", "ready"],
        help="ask this alone: the exit status is 0 for yes, and for no 1 with the reason",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the status; the exit status is 0 whenever the daemon answers."""
    directory = run_dir(arguments.name)
    try:
        client = ControlClient(directory)
    except DaemonUnavailable as error:
        if why_silent(directory) is not None:
            raise
        raise DaemonUnavailable(f"{error}{_how_it_ended(directory)}") from error
    with contextlib.closing(client):
        if arguments.probe is not None:
            return _probe(client, arguments.probe)
        status = client.ask(StatusRequest())
    if not isinstance(status, DaemonStatus):
        raise PillionError(f"the daemon {arguments.name!r} answers with {type(status).__name__}")
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(status)) + b"\n")
        return 0
    print("\n".join(describe(status)))
    return 0


def _probe(client: ControlClient, question: str) -> int:
    reply = client.ask(ProbeRequest())
    if not isinstance(reply, ProbeReply):
        raise PillionError(f"the daemon answers with {type(reply).__name__}")
    yes = reply.is_live if question == "live" else reply.is_ready
    print(question if yes else f"not {question}: {reply.reason}")
    return 0 if yes else 1


def _how_it_ended(directory: RunDir) -> str:
    """What the daemon said last, if there was one."""
    try:
        with directory.log.open("rb") as log:
            log.seek(tail_offset(directory.log, 1))
            last = log.read().decode(errors="replace").strip()
    except OSError:
        return ""
    return f"; the last line of {directory.log} is\n  {last}" if last else ""


def describe(status: DaemonStatus) -> list[str]:
    """The lines that a person reads."""
    lines = [
        f"{status.name}: {status.state}, {status.model}, pid {status.pid}, "
        f"up {_duration(status.uptime_s)}, pillion {status.version}"
    ]
    if status.failure is not None:
        lines.append(f"failure: {status.failure}")
    elif status.not_ready is not None:
        lines.append(f"not ready: {status.not_ready}")
    if status.geometry is not None:
        lines.append(_geometry(status.geometry))
    lines += ["", f"{'actor':13}{'state':10}{'pid':>8}{'memory':>11}{'cpu':>10}"]
    lines += [_actor(actor) for actor in status.actors]
    lines += _restarts(status.actors)
    if status.start_phases:
        ready = "not ready yet"
        if status.ready_after_s is not None:
            ready = f"ready after {status.ready_after_s:.2f} s"
        lines += ["", f"start ({ready})"]
        lines += [
            f"  {actor:13}{phase:24}{milliseconds:>9.0f} ms"
            for actor, phase, milliseconds in status.start_phases
        ]
    lines += _numbers(status.actors)
    return lines


def _actor(actor: ActorStatus) -> str:
    pid = str(actor.pid) if actor.pid is not None else "-"
    memory = f"{actor.rss_bytes / _MIB:.0f} MiB"
    return f"{actor.name:13}{actor.state:10}{pid:>8}{memory:>11}{actor.cpu_seconds:>8.2f} s"


def _restarts(actors: Iterable[ActorStatus]) -> list[str]:
    lines = []
    for actor in actors:
        if actor.last_death_s_ago is not None:
            kinds = ", ".join(f"{count} {kind}" for kind, count in actor.restarts.items())
            lines.append(
                f"  {actor.name:13}{sum(actor.restarts.values())} ({kinds}), "
                f"last {_duration(actor.last_death_s_ago)} ago: {actor.last_death}"
            )
    return ["", "restarts", *lines] if lines else []


def _geometry(geometry: EngineGeometry) -> str:
    num_blocks = sum(group.num_blocks for group in geometry.kv_groups)
    return (
        f"{geometry.architecture} on {geometry.device} in {geometry.dtype}: "
        f"{geometry.max_num_seqs} sequences of at most {geometry.max_model_len} tokens, "
        f"{geometry.max_num_batched_tokens} tokens a step, "
        f"weights {geometry.weights_bytes / _MIB:.0f} MiB, "
        f"KV cache {geometry.kv_bytes / _MIB:.0f} MiB ({num_blocks} blocks)"
        + _device_memory(geometry)
    )


def _device_memory(geometry: EngineGeometry) -> str:
    """What a CUDA device's memory is for, besides weights and KV cache."""
    if not geometry.device_bytes:
        return ""
    return (
        f", graphs {geometry.graphs_bytes / _MIB:.0f} MiB,"
        f" largest step {geometry.workspace_bytes / _MIB:.0f} MiB"
        f" of {geometry.device_bytes / _MIB:.0f} MiB"
    )


def _numbers(actors: Iterable[ActorStatus]) -> list[str]:
    lines = []
    for actor in actors:
        numbers = {**actor.counters, **actor.gauges}
        if numbers:
            lines += ["", actor.name]
            lines += [f"  {name:36}{_number(value):>14}" for name, value in numbers.items()]
    return lines


def _number(value: int | float | str) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else value


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
