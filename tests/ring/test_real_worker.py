"""Arrivals, aborts, preemptions, grants and mixed sampling at random: every answer is that of an undisturbed run.

The scheduler, the KV manager and the worker are the real ones, on the CPU and on a CUDA device, where steps are
graphs and two of them are in flight. PILLION_TEST_SECONDS says how long the run on the device is; what it was is told
at the end of the tests.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from ring_engine import EngineSizes
from tiny_models import load, make_reference
from worker_engine import MixedLoad, WorkerEngine

from pillion.actors.gpu_worker.device import Device

SIZES = EngineSizes(
    max_num_seqs=8,
    num_blocks=26,
    block_size=8,
    max_num_batched_tokens=128,
    max_model_len=128,
    max_repeat=8,
)
CUDA_S = 20.0
CPU_TURNS = 45
LEAST_SAMPLES = 40
SEED = 5


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So little to compute is slower with more."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "device_name",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_every_answer_is_that_of_an_undisturbed_run(
    device_name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    on_cuda = device_name == "cuda"
    device = Device(torch.device("cuda", 0) if on_cuda else torch.device("cpu"))
    engine = WorkerEngine(load(tmp_path, device.device), device, SEED, SIZES)
    load_on_it = MixedLoad(engine, SEED)
    end = time.monotonic() + float(os.environ.get("PILLION_TEST_SECONDS", CUDA_S))
    num_turns = 0
    while time.monotonic() < end if on_cuda else num_turns < CPU_TURNS:
        load_on_it.turn()
        num_turns += 1
    engine.finish()
    edge, scheduler = engine.edge, engine.scheduler.counters
    worker = engine.worker.core.counters  # type: ignore[attr-defined]
    outcomes = [sample.outcome for sample in edge.samples.values()]
    record_property(
        "told",
        f"{worker['steps']} steps, {worker['graph_steps']} of them graphs; {len(edge.requests)} arrivals"
        f" with {len(outcomes)} samples and {edge.num_tokens} tokens, {load_on_it.num_aborts} aborts,"
        f" {scheduler['preemptions']} preemptions, {edge.num_ties} ties",
    )
    assert len(outcomes) >= LEAST_SAMPLES
    assert set(outcomes) <= {"stop", "length", "abort", "rejected"}
    assert outcomes.count("length") + outcomes.count("stop") > len(outcomes) / 2
    assert scheduler["preemptions"] > 0
    assert load_on_it.num_aborts > 0
    assert edge.num_ties <= 1 + len(outcomes) // 100
    # What cannot be a graph: steps with more than a captured step has room for.
    assert (worker["graph_steps"] > worker["steps"] / 2) == on_cuda
