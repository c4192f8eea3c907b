"""The worker's own process, from its command line to its exit: the test is launcher, scheduler and edge."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.control import (
    ActorFailed,
    ActorReady,
    EngineGeometry,
    Shutdown,
    StartPhase,
)
from pillion.messages.inboxes import DetokenizerInbox, LauncherInbox, SchedulerInbox
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import NewSequence, StepOutput, StepPlan
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import NS_PER_MS
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import RunDir
from pillion.runtime.process import actor_arguments, child_environment

DEADLINE_S = 120.0
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


class WorkerProcess:
    """A worker in a process of its own, and the inboxes of those to whom it speaks."""

    def __init__(self, root: Path, config: EngineConfig, *program: str) -> None:
        """`program`: arguments of the interpreter, if it is not the worker itself."""
        self.run_dir = RunDir(root)
        self.run_dir.create()
        self.run_dir.config.write_bytes(config.to_json())
        self.inboxes: dict[str, Inbox[Any]] = {
            name: Inbox.bind(self.run_dir.inbox(name), union)
            for name, union in (
                ("launcher", LauncherInbox),
                ("scheduler", SchedulerInbox),
                ("detokenizer", DetokenizerInbox),
            )
        }
        self.post = Post(self.run_dir)
        reading, self.lifetime_fd = os.pipe()
        lock_fd = os.open(self.run_dir.lock, os.O_CREAT | os.O_RDWR, 0o600)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", *(program or ("-m", "pillion.actors.gpu_worker.process"))),
                *actor_arguments(self.run_dir, 1, reading, lock_fd),
            ],
            pass_fds=(reading, lock_fd),
            env=child_environment(),
        )
        os.close(reading)
        os.close(lock_fd)

    def wait_for(self, kind: type, inbox: str = "launcher") -> list[Any]:
        """Messages up to and with the first of this kind."""
        messages: list[Any] = []
        end = time.monotonic() + DEADLINE_S
        while not messages or not isinstance(messages[-1], kind):
            message = self.inboxes[inbox].receive(100 * NS_PER_MS)
            if message is not None:
                messages.append(message)
            elif time.monotonic() > end:
                raise TimeoutError(f"no {kind.__name__} among {messages}")
        return messages

    def close(self) -> None:
        os.close(self.lifetime_fd)
        self.process.wait(DEADLINE_S)
        self.post.close()
        for inbox in self.inboxes.values():
            inbox.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts workers on a tiny model with random weights."""
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    workers = []
    # Short, because a socket's name has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="worker-", dir="/tmp") as directory:

        def start_one(*program: str, **fields: Any) -> WorkerProcess:
            settings: dict[str, Any] = {
                "model": str(tmp_path),
                "load_format": "dummy",
                "device": "cpu",
                "dtype": "float32",
                "cpu_threads": 1,
                "max_num_seqs": 4,
                "num_kv_blocks": 32,
                "served_model_name": "tiny",
            }
            config = EngineConfig(**(settings | fields))
            workers.append(WorkerProcess(Path(directory), config, *program))
            return workers[-1]

        yield start_one
        for worker in workers:
            worker.close()


def greedy(stop_token_ids: list[int], max_tokens: int) -> TokenSampling:
    return TokenSampling(
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=0,
        stop_token_ids=stop_token_ids,
        min_tokens=0,
        max_tokens=max_tokens,
        logprobs=None,
        prompt_logprobs=None,
        logit_bias={},
        allowed_token_ids=[],
        bad_words=[],
    )


def five_tokens() -> StepPlan:
    """A prompt's plan, repeated until its answer has five tokens."""
    new = NewSequence(
        sequence_id=77,
        slot=1,
        generation=0,
        token_ids=pack_ids([5, 6, 7]),
        num_prompt_tokens=3,
        num_computed_tokens=0,
        block_ids=[pack_ids([30])],
        sampling=greedy([], 5),
    )
    return StepPlan(
        epoch=1,
        plan_id=0,
        repeat=9,
        slots=pack_ids([1]),
        generations=pack_ids([0]),
        starts=pack_ids([0]),
        num_tokens=pack_ids([3]),
        new_sequences=[new],
    )


def test_a_worker_starts_answers_and_ends(start: Any) -> None:
    worker = start()
    messages = worker.wait_for(EngineGeometry)
    phases = [message.phase for message in messages if isinstance(message, StartPhase)]
    assert phases == ["imports", "model files", "weights", "kv cache", "warm-up"]
    assert any(isinstance(message, ActorReady) for message in messages)
    geometry = messages[-1]
    assert (geometry.model_name, geometry.device, geometry.dtype) == ("tiny", "cpu", "float32")
    assert (geometry.vocab_size, geometry.max_model_len, geometry.max_num_seqs) == (320, 128, 4)
    (group,) = geometry.kv_groups
    assert (group.num_layers, group.num_blocks, group.block_size_tokens) == (2, 32, 16)
    assert group.block_bytes == 2 * 2 * 2 * 16 * 8 * 4

    worker.post.send("gpu_worker", five_tokens())
    outputs: list[StepOutput] = []
    while not outputs or outputs[-1].finish == b"\0":
        outputs += worker.wait_for(StepOutput, "scheduler")
    assert [output.step_id for output in outputs] == [0, 1, 2, 3, 4]
    assert all(len(unpack_ids(output.token_ids)) == 1 for output in outputs)
    assert outputs[-1].times is not None
    copies = [worker.wait_for(StepOutput, "detokenizer")[-1] for _ in outputs]
    assert copies == outputs

    worker.post.send("gpu_worker", Shutdown())
    assert worker.process.wait(DEADLINE_S) == 0


def test_a_setting_that_cannot_work_is_said_before_weights_are_read(start: Any) -> None:
    worker = start(max_model_len=4096)
    messages = worker.wait_for(ActorFailed)
    assert "max_model_len is 4096, but the model was made for 128" in messages[-1].message
    assert not any(getattr(message, "phase", "") == "weights" for message in messages)
    assert worker.process.wait(DEADLINE_S) == 1


# What the worker has aborts when it is freed, as page-locked memory may on a device whose context is broken.
ABORTS_WHEN_FREED = """
import os, sys
from pillion.actors.gpu_worker import start_up
from pillion.actors.gpu_worker.process import main
start_worker = start_up.start_worker
def start_with_memory(*arguments):
    worker, geometry = start_worker(*arguments)
    worker.memory = type("Memory", (), {"__del__": staticmethod(os.abort)})()
    return worker, geometry
start_up.start_worker = start_with_memory
sys.exit(main())
"""


def test_a_worker_that_fails_gives_nothing_back(start: Any) -> None:
    worker = start("-c", ABORTS_WHEN_FREED)
    worker.wait_for(EngineGeometry)
    for plan_id in (0, 7):
        worker.post.send("gpu_worker", structs.replace(five_tokens(), plan_id=plan_id))
    assert "InvariantBroken" in worker.wait_for(ActorFailed)[-1].message
    assert worker.process.wait(DEADLINE_S) == 1


def test_a_worker_ends_with_its_launcher(start: Any) -> None:
    worker = start()
    worker.wait_for(EngineGeometry)
    os.close(worker.lifetime_fd)
    assert worker.process.wait(DEADLINE_S) == -signal.SIGKILL
    worker.lifetime_fd = os.open(os.devnull, os.O_RDONLY)
