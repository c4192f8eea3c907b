"""Steps of an exact length as clients see them: a text edge and a client, without scheduler, worker or card.

usage: edge_load.py [--model smollm2] [--rows 256] [--step-us 1400] [--output 256] [--whole] [--repeats 3]

So many requests of 128 tokens run at once, begun in four groups by steps of 12 ms, and every step after that takes
`--step-us`. A line per repeat: processor time of edge and client per step; a step as `pillion bench bubble` takes its
time, and over its real length; milliseconds from the last step to the last answer. With `--whole` answers are not
streamed, as LLM.generate asks for them. Edge and client have a core each, where there are two.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pillion import AsyncClient, SamplingParams
from pillion.messages.codec import pack_ids, pack_int64
from pillion.messages.control import EngineGeometry, StartPhase
from pillion.messages.ids import FINISH_LENGTH, FINISH_NONE
from pillion.messages.inboxes import LauncherInbox, SchedulerInbox
from pillion.messages.requests import NewRequest, RequestScheduled
from pillion.messages.steps import StepOutput, StepTimes
from pillion.runtime.bench.engine import random_prompt, seconds_per_step, together
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import NS_PER_S
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model
from pillion.runtime.paths import RunDir
from pillion.runtime.proc_files import cpu_seconds
from pillion.runtime.process import actor_arguments, child_environment

NUM_INPUT = 128
VOCAB_SIZE = 49_152
GROUPS = 4
PREFILL_NS = 12_000_000
START_DEADLINE_S = 30


class Load(NamedTuple):
    """What is asked for at once, and how fast it is answered."""

    rows: int
    output: int
    step_us: int


def step_of(requests: Sequence[NewRequest], step: int, load: Load) -> StepOutput:
    """The answer of this step: each group begins a step after the one before."""
    starts = [row * GROUPS // len(requests) for row in range(len(requests))]
    rows = [row for row, start in enumerate(starts) if 0 <= step - start < load.output]
    places = [step - starts[row] for row in rows]
    nothing = pack_ids([0] * len(rows))
    return StepOutput(
        epoch=1,
        step_id=step,
        plan_id=step,
        execution=0,
        sequence_ids=pack_int64(requests[row].request_id for row in rows),
        slots=nothing,
        generations=nothing,
        positions=pack_ids(NUM_INPUT + place for place in places),
        num_tokens=pack_ids([1] * len(rows)),
        token_ids=pack_ids((row * 7919 + step * 1047) % (VOCAB_SIZE - 1000) + 500 for row in rows),
        finish=bytes(FINISH_LENGTH if p == load.output - 1 else FINISH_NONE for p in places),
        times=StepTimes(
            prepare_ns=0,
            execute_ns=0,
            output_ns=0,
            num_prefill_tokens=0,
            num_decode_tokens=len(rows),
        ),
    )


def feed(root: Path, load: Load, last_step_ns: Any) -> None:
    """Scheduler and worker in one process. Writes: when the last step of a round was sent."""
    run_dir = RunDir(root)
    scheduler: Inbox[Any] = Inbox.bind(run_dir.inbox("scheduler"), SchedulerInbox)
    post = Post(run_dir)
    requests: list[NewRequest] = []
    while True:
        message = scheduler.receive(None)
        if isinstance(message, NewRequest):
            requests.append(message)
            scheduled = RequestScheduled(
                epoch=1, sequence_id=message.request_id, num_cached_tokens=0, miss_reason="cold"
            )
            post.send("detokenizer", scheduled)
        if len(requests) < load.rows:
            continue
        steps = [step_of(requests, step, load) for step in range(load.output + GROUPS - 1)]
        due_ns = time.monotonic_ns()
        for step, output in enumerate(steps):
            time.sleep(max(0, due_ns - time.monotonic_ns()) / NS_PER_S)
            post.send("detokenizer", output)
            due_ns += PREFILL_NS if step < GROUPS - 1 else load.step_us * 1000
        last_step_ns.value = time.monotonic_ns()
        requests.clear()


@contextmanager
def text_edge(run_dir: RunDir) -> Iterator[int]:
    """A text edge whose model is loaded; its process id."""
    launcher: Inbox[Any] = Inbox.bind(run_dir.inbox("launcher"), LauncherInbox)
    post = Post(run_dir)
    lifetime_fd, our_lifetime_fd = os.pipe()
    lock_fd = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT)
    edge = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "pillion.actors.detokenizer.process"),
            *actor_arguments(run_dir, 1, lifetime_fd, lock_fd),
        ],
        pass_fds=(lifetime_fd, lock_fd),
        env=child_environment(),
    )
    os.close(lifetime_fd)
    try:
        while not isinstance(message := launcher.receive(START_DEADLINE_S * NS_PER_S), StartPhase):
            if message is None:
                raise TimeoutError(f"the text edge was not ready after {START_DEADLINE_S} s")
        post.send("detokenizer", _geometry())
        yield edge.pid
    finally:
        os.close(our_lifetime_fd)
        edge.wait()
        os.close(lock_fd)
        launcher.close()
        post.close()


def _geometry() -> EngineGeometry:
    return EngineGeometry(
        epoch=1,
        model_name="none",
        architecture="none",
        device="cpu",
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        max_model_len=8192,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        kv_groups=[],
        weights_bytes=0,
        kv_bytes=0,
    )


async def ask(path: Path, load: Load, rng: random.Random, whole: bool) -> float | None:
    """One round. Returns the seconds of a step as its streams saw it."""
    prompts = [random_prompt(rng, VOCAB_SIZE, NUM_INPUT) for _ in range(load.rows)]
    async with AsyncClient(path) as client:
        if not whole:
            return seconds_per_step(await together(client, prompts, load.output))
        params = SamplingParams(temperature=0.0, max_tokens=load.output, ignore_eos=True)
        outputs = await client.generate(prompts, params)
        if any(len(output.outputs[0].token_ids) != load.output for output in outputs):
            raise ValueError("an answer has another length")
        return None


def measure(model: str, load: Load, repeats: int, whole: bool) -> Iterator[dict[str, float]]:
    """What is printed of each round."""
    config = locate_model(EngineConfig(model=model, name="edge-load"), progress=False)
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        run_dir = RunDir(Path(folder))
        run_dir.config.write_bytes(config.to_json())
        context = multiprocessing.get_context("spawn")
        last_step_ns = context.Value("q", 0)
        feeder = context.Process(target=feed, args=(run_dir.root, load, last_step_ns), daemon=True)
        feeder.start()
        try:
            with text_edge(run_dir) as edge_pid:
                _pin(edge_pid)
                gc.freeze()
                rng = random.Random(0)
                for _ in range(repeats):
                    spent_s = [-cpu_seconds(pid) for pid in (edge_pid, os.getpid())]
                    step_s = asyncio.run(ask(run_dir.client_socket, load, rng, whole))
                    tail_ms = (time.monotonic_ns() - last_step_ns.value) / 1e6
                    spent_s[0] += cpu_seconds(edge_pid)
                    spent_s[1] += cpu_seconds(os.getpid())
                    edge_us, client_us = (seconds * 1e6 / load.output for seconds in spent_s)
                    found = {"edge us": edge_us, "client us": client_us, "tail ms": tail_ms}
                    if step_s is not None:
                        found |= {"step ms": step_s * 1e3, "bubble": step_s * 1e6 / load.step_us}
                    yield found
        finally:
            feeder.kill()
            feeder.join()


def _pin(edge_pid: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(edge_pid, cores[:1])
        os.sched_setaffinity(0, cores[1:2])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--step-us", type=int, default=1400)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args(argv)
    for found in measure(a.model, Load(a.rows, a.output, a.step_us), a.repeats, a.whole):
        print(", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
