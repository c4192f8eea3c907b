"""A whole daemon without weights: what overload tests and benches of the ring run on."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from pillion import Client, SamplingParams
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model
from pillion.runtime.process import child_environment

DAEMON = Path(__file__).with_name("fake_worker_daemon.py")
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0


@pytest.mark.model
def test_a_daemon_with_a_fake_worker_answers_and_ends_with_its_pipe(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILLION_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    config = locate_model(
        EngineConfig(model=str(smollm2_path), name="fake", max_num_seqs=2, max_model_len=256),
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
        with Client("fake") as client:
            params = SamplingParams(max_tokens=12, temperature=0.0)
            answers = [client.generate("The ring", params) for _ in range(2)]
        assert len(answers[0].outputs[0].token_ids) == 12
        assert answers[0].outputs[0].token_ids == answers[1].outputs[0].token_ids
    finally:
        os.close(our_lifetime_fd)
        assert daemon.wait(STOP_DEADLINE_S) == 0
