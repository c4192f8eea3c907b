"""A real model whose steps fail: the culprit hears what happened, its neighbours' answers do not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pillion import Client, RequestOutput, SamplingParams
from pillion.messages.control import ActorStatus
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model, start_daemon
from pillion.runtime.errors import RequestError
from pillion.runtime.request_stream import RequestStream

pytestmark = pytest.mark.model

START_DEADLINE_S = 120.0
POISON, NAN = 3000, 3001  # tokens that no test asks for by chance
FLAGS = (
    f"gpu_worker:raise_in_layer=15:token={POISON}",
    f"gpu_worker:nan_in_row:token={NAN}",
    # A fault that does not come again, in a step that only a long prompt has.
    "gpu_worker:raise_in_layer=20:position=300:times=1",
)


@contextmanager
def serving(model: Path, root: Path, flags: tuple[str, ...], **settings: Any) -> Iterator[str]:
    """The name of a daemon whose steps can be made to fail."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PILLION_RUNTIME_DIR", str(root))
        config = EngineConfig(
            model=str(model),
            name="faulty",
            dtype="float32",
            max_model_len=512,
            kv_cache_bytes=128 << 20,
            cpu_threads=1,
            fault_flags=flags,
            **settings,
        )
        process = start_daemon(locate_model(config, progress=False), private=True)
        try:
            process.wait_ready(START_DEADLINE_S)
            yield "faulty"
        finally:
            process.stop()
            process.close()


@pytest.fixture(scope="module")
def daemon(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(smollm2_path, tmp_path_factory.mktemp("r"), FLAGS) as name:
        yield name


def whole(stream: RequestStream) -> RequestOutput:
    """The answer at its end."""
    for _ in stream:
        pass
    return stream.output


def neighbours(client: Client, others: list[list[int]]) -> tuple[list[object], list[RequestStream]]:
    """Greedy and seeded answers, computed beside other requests; and the streams of these."""
    greedy = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    seeded = SamplingParams(temperature=0.9, seed=7, max_tokens=16, ignore_eos=True)
    prompts = ["The capital of France is", "Once upon a time", "def add(a, b):"]
    streams = [
        client.generate(prompt, params, stream=True)
        for prompt in prompts
        for params in (greedy, seeded)
    ]
    beside = [client.generate(prompt, greedy, stream=True) for prompt in others]
    answers = [whole(stream).outputs[0] for stream in streams]
    return [(answer.text, answer.token_ids) for answer in answers], beside


def actors(client: Client) -> dict[str, ActorStatus]:
    return {actor.name: actor for actor in client.status().actors}


def test_a_step_that_raises_fails_its_culprit_alone(daemon: str) -> None:
    with Client(daemon) as client:
        undisturbed, _ = neighbours(client, [])
        before = actors(client)["gpu_worker"]
        answers, (bad, good) = neighbours(client, [[100, POISON, 101], [100, 102]])
        assert answers == undisturbed
        assert len(whole(good).outputs[0].token_ids) == 16
        with pytest.raises(RequestError, match="InjectedFault: layer 15 fails") as failure:
            whole(bad)
        assert "with nothing else in it" in str(failure.value)
        after = actors(client)["gpu_worker"]
    assert (before.pid, before.epoch) == (after.pid, after.epoch)
    # In a step with others or alone, and alone for the second time.
    assert after.counters["failed_steps"] - before.counters["failed_steps"] >= 2


def test_a_row_that_is_not_finite_fails_alone_and_at_once(daemon: str) -> None:
    with Client(daemon) as client:
        undisturbed, _ = neighbours(client, [])
        before = actors(client)["gpu_worker"].counters["failed_steps"]
        answers, (bad,) = neighbours(client, [[NAN, 100]])
        assert answers == undisturbed
        with pytest.raises(RequestError, match="not finite"):
            whole(bad)
        assert actors(client)["gpu_worker"].counters["failed_steps"] == before


def test_a_fault_that_passes_costs_nobody_an_answer(daemon: str) -> None:
    """What the step wrote before it failed, in 20 of 30 layers, is found by nobody."""
    long = [5 + number % 900 for number in range(320)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with Client(daemon) as client:
        undisturbed, _ = neighbours(client, [])
        before = actors(client)["gpu_worker"].counters["failed_steps"]
        answers, (other,) = neighbours(client, [long])
        first = whole(other).outputs[0].token_ids[:8]
        assert answers == undisturbed
        assert actors(client)["gpu_worker"].counters["failed_steps"] == before + 1
        again = client.generate(long, params)
        assert again.num_cached_tokens
        assert again.outputs[0].token_ids == first


def test_a_lost_device_is_replaced_and_its_culprit_fails_alone(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One restart is allowed; those that a request makes necessary do not count."""
    flags = (f"gpu_worker:lose_device:token={POISON}",)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with (
        serving(smollm2_path, tmp_path_factory.mktemp("r"), flags, max_restarts=1) as name,
        Client(name) as client,
    ):
        undisturbed = client.generate("Once upon a time", params).outputs[0].token_ids
        stream = client.generate("Once upon a time", params, stream=True)
        next(stream)
        with pytest.raises(RequestError, match="DeviceLost: the device is gone"):
            client.generate([100, POISON, 101], params)
        assert whole(stream).outputs[0].token_ids == undisturbed
        worker = actors(client)["gpu_worker"]
    assert worker.restarts == {"failed": worker.epoch - 1}
    assert worker.epoch >= 3
