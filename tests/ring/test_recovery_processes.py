"""A daemon of real processes, without weights, whose actors are killed one after the other under a stream."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillion import Client, SamplingParams
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model
from pillion.runtime.outputs import RequestOutput
from pillion.runtime.process import child_environment

DAEMON = Path(__file__).with_name("fake_worker_daemon.py")
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
NAME = "recovery"
# Of everything that a new life must not forget. 2 ms a step: the stream outlasts a restart.
PARAMS = SamplingParams(
    n=3, max_tokens=400, seed=5, temperature=1.0, logprobs=2, prompt_logprobs=1, stop=["zzz"]
)


@pytest.fixture(scope="module")
def daemon(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The daemon, with its tokenizer, text edge, scheduler and KV manager."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    config = locate_model(
        EngineConfig(
            model=str(smollm2_path), name=NAME, max_num_seqs=4, max_model_len=512, max_restarts=100
        ),
        progress=False,
    )
    lifetime_fd, our_lifetime_fd = os.pipe()
    our_ready_fd, ready_fd = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable,
            str(DAEMON),
            "--step-us=2000",
            f"--config={config.to_json().decode()}",
            f"--lifetime-fd={lifetime_fd}",
            f"--ready-fd={ready_fd}",
        ],
        pass_fds=(lifetime_fd, ready_fd),
        env=child_environment(),
    )
    os.close(lifetime_fd)
    os.close(ready_fd)
    with open(our_ready_fd) as outcome:
        assert select.select([outcome], [], [], START_DEADLINE_S)[0], "the daemon's word"
        assert json.loads(outcome.readline())["ready"]
    yield
    os.close(our_lifetime_fd)
    assert process.wait(STOP_DEADLINE_S) == 0
    monkeypatch.undo()


def pid_of(client: Client, actor: str) -> int:
    (pid,) = [status.pid for status in client.status().actors if status.name == actor]
    assert pid is not None
    return pid


def answer(client: Client, victims: tuple[str, ...] = ()) -> RequestOutput:
    """The whole answer; the victims die when a part of it has come."""
    stream = client.generate("The ring goes on", PARAMS, stream=True)
    for number, _ in enumerate(stream):
        if number == 20:
            for victim in victims:
                os.kill(pid_of(client, victim), signal.SIGKILL)
    return stream.output


def shown(output: RequestOutput) -> list[object]:
    samples = [
        (s.text, s.token_ids, s.logprobs, s.finish_reason, s.stop_reason) for s in output.outputs
    ]
    return [samples, output.prompt_logprobs]


@pytest.mark.model
@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize(
    "victims",
    [
        ("scheduler",),
        ("kv_manager",),
        ("gpu_worker",),
        ("detokenizer",),
        ("scheduler", "kv_manager"),
        ("gpu_worker", "scheduler"),
        ("detokenizer", "gpu_worker", "kv_manager"),
    ],
)
def test_a_stream_goes_on_as_if_nobody_had_died(victims: tuple[str, ...]) -> None:
    with Client(NAME) as client:
        whole = answer(client)
        assert whole.finished
        before = {status.name: status.epoch for status in client.status().actors}
        assert shown(answer(client, victims)) == shown(whole)
        after = {status.name: status.epoch for status in client.status().actors}
        assert {name for name in after if after[name] > before[name]} == set(victims)
