"""A real model: a worker that hangs is replaced under a running stream, one that works long is not."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion import Client, SamplingParams
from pillion.messages.control import ActorStatus
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model, start_daemon

pytestmark = pytest.mark.model

START_DEADLINE_S = 120.0
STEP_TOKENS = 2048


@pytest.fixture(scope="module")
def client(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PILLION_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
        config = EngineConfig(
            model=str(smollm2_path),
            name="hanging",
            dtype="float32",
            max_model_len=4096,
            max_num_batched_tokens=STEP_TOKENS,
            kv_cache_bytes=512 << 20,
            cpu_threads=1,
            stall_limit_s=1.0,
        )
        process = start_daemon(locate_model(config, progress=False), private=True)
        try:
            process.wait_ready(START_DEADLINE_S)
            with Client("hanging") as client:
                yield client
        finally:
            process.stop()
            process.close()


def worker_of(client: Client) -> ActorStatus:
    (worker,) = (actor for actor in client.status().actors if actor.name == "gpu_worker")
    return worker


def test_a_step_of_a_long_prompt_is_no_hang(client: Client) -> None:
    prompt = [3 + number % 997 for number in range(STEP_TOKENS)]
    answer = client.generate(prompt, SamplingParams(max_tokens=1))
    assert len(answer.outputs[0].token_ids) == 1
    worker = worker_of(client)
    assert int(worker.counters["execute_ns"]) / int(worker.counters["steps"]) > 1e9, (
        "the step took longer than the limit"
    )
    assert {actor.epoch for actor in client.status().actors} == {1}


def test_a_stopped_worker_is_replaced_and_the_stream_goes_on(client: Client) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    prompt = "Three rivers of Europe are"
    undisturbed = client.generate(prompt, params).outputs[0]
    stream = client.generate(prompt, params, stream=True)
    next(stream)
    pid = worker_of(client).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    for _ in stream:
        pass
    output = stream.output.outputs[0]
    assert (output.token_ids, output.text) == (undisturbed.token_ids, undisturbed.text)
    worker = worker_of(client)
    assert worker.restarts == {"hung": 1}
    assert "it is stopped" in str(worker.last_death)
