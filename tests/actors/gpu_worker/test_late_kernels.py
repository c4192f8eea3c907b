"""What is compiled after the start is told."""

import json
import logging
from pathlib import Path

import pytest

from pillion.actors.gpu_worker.bare_steps import BareSteps, Rows
from pillion.actors.gpu_worker.late_kernels import warn_of_late_kernels
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.runtime.config import make_config

triton = pytest.importorskip("triton")

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
SHAPES = (
    (1, 1), (1, 9), (3, 5), (20, 5), (200, 3), (1, 130), (5, 250), (40, 200), (1, 1500), (2, 3300), (1, 8000),
)  # fmt: skip


class Source:
    name = "some_kernel"


def test_a_kernel_that_is_compiled_late_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    warn_of_late_kernels()
    listener = triton.knobs.compilation.listener
    with caplog.at_level(logging.WARNING):
        listener(src=Source(), metadata={}, metadata_group={}, times=None, cache_hit=True)
        assert not caplog.messages
        listener(src=Source(), metadata={}, metadata_group={}, times=None, cache_hit=False)
    assert ["some_kernel" in message for message in caplog.messages] == [True]


@pytest.mark.gpu
def test_a_start_has_run_all_kernels_that_steps_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the lengths and numbers of prompts; in graphs, beyond them and where prompts are long."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    config = make_config(
        {
            "model": str(tmp_path),
            "load_format": "dummy",
            "num_kv_blocks": 4096,
            "tuning_seconds": 0.0,
        }
    )
    stages, geometry = start_stages(config, 1, lambda phase: None)
    late = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **it: late.append(it["src"]))
    bare = BareSteps(stages, geometry, 2)
    for num_rows, num_tokens in SHAPES:
        rows = Rows(num_rows, num_tokens, 20)
        bare.seat(rows)
        bare.graph(num_rows)  # has decoded a step
        bare.release(rows)
    assert [source.name for source in late] == []
