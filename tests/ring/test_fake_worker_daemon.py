"""A whole daemon without weights: what overload tests and benches of the ring run on."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillion import Client, SamplingParams
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model
from pillion.runtime.process import child_environment

DAEMON = Path(__file__).with_name("fake_worker_daemon.py")
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
STATISTICS_DEADLINE_S = 5.0


@contextlib.contextmanager
def fake_worker_daemon(model: Path, **settings: Any) -> Iterator[None]:
    """The daemon "fake", ready."""
    config = locate_model(
        EngineConfig(model=str(model), name="fake", max_num_seqs=2, max_model_len=256, **settings),
        progress=False,
    )
    lifetime_fd, our_lifetime_fd = os.pipe()
    our_ready_fd, ready_fd = os.pipe()
    daemon = subprocess.Popen(
        [
            sys.executable,
            str(DAEMON),
            f"--config={config.to_json().decode()}",
            f"--lifetime-fd={lifetime_fd}",
            f"--ready-fd={ready_fd}",
        ],
        pass_fds=(lifetime_fd, ready_fd),
        env=child_environment(),
    )
    os.close(lifetime_fd)
    os.close(ready_fd)
    try:
        with open(our_ready_fd) as outcome:
            assert select.select([outcome], [], [], START_DEADLINE_S)[0], "the daemon's word"
            assert json.loads(outcome.readline())["ready"]
        yield
    finally:
        os.close(our_lifetime_fd)
        assert daemon.wait(STOP_DEADLINE_S) == 0


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(root))
    return root


@pytest.mark.model
@pytest.mark.usefixtures("root")
def test_a_daemon_with_a_fake_worker_answers_and_ends_with_its_pipe(smollm2_path: Path) -> None:
    with fake_worker_daemon(smollm2_path), Client("fake") as client:
        params = SamplingParams(max_tokens=12, temperature=0.0)
        answers = [client.generate("The ring", params) for _ in range(2)]
    assert len(answers[0].outputs[0].token_ids) == 12
    assert answers[0].outputs[0].token_ids == answers[1].outputs[0].token_ids


@pytest.mark.model
@pytest.mark.parametrize("message", [1, 2, 3])  # the sizes of the engine are among them
def test_a_request_that_waits_for_a_message_that_is_lost_goes_on(
    smollm2_path: Path, root: Path, message: int
) -> None:
    """Every loop turns and nothing is done: such a ring is found by the work that is open."""
    flags = (f"kv_manager:drop_message:message={message}",)
    with (
        fake_worker_daemon(smollm2_path, fault_flags=flags, stall_limit_s=1.0),
        Client("fake") as client,
    ):
        params = SamplingParams(max_tokens=12, temperature=0.0)
        # Longer than a block, so that its prefix is asked for.
        answer = client.generate("The ring goes round and round. " * 4, params)
        assert len(answer.outputs[0].token_ids) == 12
        (scheduler,) = (a for a in client.status().actors if a.name == "scheduler")
        assert scheduler.restarts == {"hung": 1}
        assert "requests are open and no step was run" in str(scheduler.last_death)


def wait_for_requests(client: Client, number: int) -> None:
    """Until the first life of the edge has counted so many requests: a resumed one counts again."""
    deadline = time.monotonic() + STATISTICS_DEADLINE_S
    counted: int | float = 0
    while counted != number:
        assert time.monotonic() < deadline, f"{number} requests are counted, {counted} so far"
        time.sleep(0.05)
        edge = next(actor for actor in client.status().actors if actor.name == "detokenizer")
        assert edge.epoch == 1
        counted = edge.counters["requests_received"]


@pytest.mark.model
@pytest.mark.usefixtures("root")
def test_a_connection_that_breaks_loses_nothing(smollm2_path: Path) -> None:
    params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    answers = []
    for flags in ((), tuple(f"detokenizer:drop_connection={write}" for write in (2, 5, 8, 12))):
        with (
            fake_worker_daemon(smollm2_path, fault_flags=flags, max_repeat=1),
            Client("fake") as client,
        ):
            stream = client.generate("The ring", params, stream=True)
            chunks = [token for new in stream for token in new.outputs[0].token_ids]
            output = stream.output.outputs[0]
            assert chunks == list(output.token_ids)
            answers.append((output.text, output.token_ids, output.finish_reason))
            wait_for_requests(client, 1 + len(flags))
    assert len(answers[0][1]) == 100
    assert answers[0] == answers[1]


@pytest.mark.model
@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("victim", ["kv_manager", "scheduler", "detokenizer", "gpu_worker"])
def test_a_request_right_after_a_death_is_served(smollm2_path: Path, victim: str) -> None:
    with fake_worker_daemon(smollm2_path), Client("fake") as client:
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        before = client.generate("The ring", params)
        (actor,) = (actor for actor in client.status().actors if actor.name == victim)
        assert actor.pid is not None
        os.kill(actor.pid, signal.SIGKILL)
        after = client.generate("The ring", params)
        assert after.outputs[0].token_ids == before.outputs[0].token_ids
