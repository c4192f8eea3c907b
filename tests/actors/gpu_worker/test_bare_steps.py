"""Steps without an engine around them: sequences are seated, measured and gone again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import SIZES

from pillion.actors.gpu_worker.bare_steps import BareSteps, Rows
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.messages.control import EngineGeometry
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.process import child_environment

PROMPT, ANSWER = 8, 24


def config(folder: Path, device: str) -> EngineConfig:
    content = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
    (folder / "config.json").write_text(json.dumps(content))
    return EngineConfig(
        model=str(folder),
        model_path=str(folder),
        device=device,
        load_format="dummy",
        max_num_seqs=6,
        max_num_batched_tokens=20,
        max_model_len=64,
        kv_cache_bytes=1 << 20,
        tuning_seconds=0.0,
    )


def start(folder: Path, device: str) -> tuple[Stages, EngineGeometry]:
    return start_stages(config(folder, device), 1, lambda phase: None)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stages, EngineGeometry]:
    return start(tmp_path_factory.mktemp("model"), "cpu")


def test_every_prefill_is_measured_and_leaves_the_tables_empty(
    on_cpu: tuple[Stages, EngineGeometry],
) -> None:
    stages, geometry = on_cpu
    bare = BareSteps(stages, geometry, 1)
    found = bare.prefill_ms(PROMPT, 3)
    assert len(found) == 3
    assert all(ms > 0 for ms in found)
    assert len(stages.states.occupied()) == 0


def test_without_a_graph_there_is_no_replay(on_cpu: tuple[Stages, EngineGeometry]) -> None:
    stages, geometry = on_cpu
    with pytest.raises(ConfigError, match="no graph was captured for a step of 5 decode rows"):
        BareSteps(stages, geometry, 1).replay_ms(Rows(5, PROMPT, ANSWER), 1)
    # Three prompts were more than a step holds, and all of them were read.
    assert stages.states.num_known_np[:5].min() > PROMPT
    stages.input_preparer.release(stages.states.occupied())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows(7, PROMPT, ANSWER), "7 rows were asked for, the engine has 6"),
        (Rows(1, 21, ANSWER), "21 tokens of a prompt in one step"),
        (Rows(1, PROMPT, 60), "68 tokens of a sequence"),
    ],
)
def test_what_the_engine_cannot_seat_is_refused(
    on_cpu: tuple[Stages, EngineGeometry], rows: Rows, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        BareSteps(*on_cpu, 1).replay_ms(rows, 1)


def test_the_module_prints_one_line_or_the_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "pillion.actors.gpu_worker.bare_steps"]
    command += ["--config", config(tmp_path, "cpu").to_json().decode(), "--prefill-repeats=2"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            env=child_environment(),
            timeout=120,
        )

    found = json.loads(run("--prefill", "8", "16").stdout)
    assert {size: len(ms) for size, ms in found["prefill_ms"].items()} == {"8": 2, "16": 2}
    refused = run("--batch", "1")
    assert refused.returncode == 1
    assert "this device is a CPU" in refused.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replays_of_a_graph_are_the_steps_that_a_worker_runs(tmp_path: Path) -> None:
    """Each replay makes one token of each row, up to the last but none of the answer's room."""
    stages, geometry = start(tmp_path, "cuda")
    known: list[list[int]] = []
    release = stages.states.release

    def note(slots: Any, writes: TableWrites) -> None:
        known.append(stages.states.num_known[:5].tolist())
        release(slots, writes)

    stages.states.release = note  # type: ignore[method-assign]
    found = BareSteps(stages, geometry, 2).replay_ms(Rows(5, PROMPT, ANSWER), 3)
    assert len(found) == 3
    assert all(ms > 0 for ms in found)
    assert known[0] == [PROMPT + ANSWER] * 5
    assert known[1:] == known[:1] * 2
