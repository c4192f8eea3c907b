"""A real model whose steps fail: the culprit hears what happened, its neighbours' answers do not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pillion import Client, RequestOutput, SamplingParams
from pillion.messages.control import ActorStatus
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model, start_daemon
from pillion.runtime.errors import RequestError
from pillion.runtime.paths import RunDir
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


# One restart is allowed, of which the lives that a request ends spend nothing.
LIMITS = {"stall_limit_s": 1.0, "step_limit_s": 2.0, "max_restarts": 1}
LOST, CRASH, SPIN = 3002, 3003, 3004
FATAL_FLAGS = (
    f"gpu_worker:lose_device:token={LOST}",
    f"gpu_worker:crash_in_layer=15:token={CRASH}",
    f"gpu_worker:spin_in_layer=15:token={SPIN}",
)


@pytest.fixture(scope="module")
def mortal_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r")


@pytest.fixture(scope="module")
def mortal(smollm2_path: Path, mortal_root: Path) -> Iterator[str]:
    """A daemon whose worker can be ended by a request."""
    with serving(smollm2_path, mortal_root, FATAL_FLAGS, **LIMITS) as name:
        yield name


def fails_alone(name: str, token: int, told: str) -> tuple[ActorStatus, ActorStatus]:
    """A prompt with this token fails beside a stream, which goes on; the worker before and after.

    Also where nobody is left to say which step it was: what was in flight is tried again in halves.
    """
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with Client(name) as client:
        undisturbed = client.generate("Once upon a time", params).outputs[0].token_ids
        before = actors(client)["gpu_worker"]
        stream = client.generate("Once upon a time", params, stream=True)
        next(stream)
        with pytest.raises(RequestError, match=f"with nothing else in it: .*{told}"):
            client.generate([100, token, 101], params)
        assert whole(stream).outputs[0].token_ids == undisturbed
        return before, actors(client)["gpu_worker"]


@pytest.mark.parametrize(
    ("token", "kind", "told"),
    [
        (LOST, "failed", "DeviceLost: the device is gone"),
        (CRASH, "killed", "was killed by SIGSEGV"),
    ],
)
def test_a_request_that_ends_each_worker_fails_alone(
    mortal: str, token: int, kind: str, told: str
) -> None:
    before, after = fails_alone(mortal, token, told)
    num_lives = after.epoch - before.epoch
    assert num_lives >= 2
    assert after.restarts == {**before.restarts, kind: num_lives}


def test_a_step_that_never_ends_is_found_in_time_and_its_culprit_fails_alone(
    mortal: str, mortal_root: Path
) -> None:
    before, after = fails_alone(
        mortal, SPIN, "its step has made no progress for step_limit_s = 2 s"
    )
    num_lives = after.epoch - before.epoch
    assert after.restarts == {**before.restarts, "hung": num_lives}
    log = RunDir(mortal_root / mortal).log.read_text().splitlines()
    began, found = (
        [datetime.fromisoformat(line[:23]) for line in log if what in line]
        for what in ("layer 15 spins", "hung: its step")
    )
    assert len(began) == len(found) == num_lives
    for start, end in zip(began, found, strict=True):
        # The layer before it was stamped a moment before the line was written.
        assert 1.9 < (end - start).total_seconds() < LIMITS["step_limit_s"] + 1
