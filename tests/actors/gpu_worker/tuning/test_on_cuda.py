"""A start with a shape that nobody has measured, on a card."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Runner, load, random_tokens

from pillion.actors.gpu_worker.compile_ahead import compile_ahead
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.actors.gpu_worker.tuning import start as module
from pillion.kernels.fused_linear.tiles import Kind, choose, choose_untuned, padded_rows, use_tuned
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import cache_root

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# No tile divides them.
HIDDEN, FFN, HEADS, KV_HEADS, DIM, VOCAB = 328, 712, 5, 1, 64, 1003
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": True,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
PRODUCTS: list[tuple[Kind, int, int]] = [
    ("qkv", (HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
    ("add", HIDDEN, HEADS * DIM),
    ("gated", 2 * FFN, HIDDEN),
    ("add", HIDDEN, FFN),
    ("head", VOCAB, HIDDEN),
]
ROWS = (1, 5, 13, 32, 40)


def start(folder: Path, **fields: Any) -> list[str]:
    """The phases of a start."""
    config = EngineConfig(
        model=str(folder),
        model_path=str(folder),
        load_format="dummy",
        max_num_seqs=max(ROWS),
        max_num_batched_tokens=256,
        num_kv_blocks=256,
        **fields,
    )
    phases: list[str] = []
    start_stages(config, 1, phases.append, compilation=compile_ahead(config))
    return phases


def chosen() -> dict[Any, Any]:
    return {(product, rows): choose(*product, rows) for product in PRODUCTS for rows in ROWS}


def untuned() -> dict[Any, Any]:
    return {
        (product, rows): choose_untuned(*product, padded_rows(rows))
        for product in PRODUCTS
        for rows in ROWS
    }


def logits(folder: Path, num_rows: int) -> torch.Tensor:
    """Of a decode step behind prompts of five tokens, [num_rows, vocab_size]."""
    loaded = load(folder, torch.device("cuda", 0), dtype="bfloat16", load_format="dummy")
    runner = Runner(loaded, torch.device("cuda", 0), num_sequences=num_rows)
    tokens = [random_tokens(6, seed) for seed in range(num_rows)]
    runner.step([(row, tokens[row][:5]) for row in range(num_rows)])
    return torch.cat(runner.step([(row, tokens[row][5:]) for row in range(num_rows)]))


def test_a_first_start_tunes_and_later_ones_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import knobs

    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    phases = start(tmp_path)
    assert "tuning" in phases
    (path,) = (cache_root() / "tuning").iterdir()
    data = json.loads(path.read_text())
    assert data["short_s"] is None, "time was too short"
    assert {found["rows"] for found in data["chosen"]} == {1, 8, 16, 32, 64}
    assert sorted(rows for rows, _, _ in data["layer_us"]) == [1, 8, 16, 32, 64]
    tuned = chosen()
    print({rows: (before, after) for rows, before, after in data["layer_us"]})
    assert tuned != untuned()
    found = {num_rows: logits(tmp_path, num_rows) for num_rows in ROWS}

    written = path.stat()
    compiled: list[str] = []
    monkeypatch.setattr(
        knobs.compilation,
        "listener",
        lambda *, src, cache_hit, **_: cache_hit or compiled.append(src.name),
    )
    monkeypatch.setattr(module, "ModelBench", None)
    use_tuned({})
    again = start(tmp_path)
    assert "tuning" not in again
    assert "kernels" not in again
    assert compiled == []
    assert chosen() == tuned
    assert path.stat().st_mtime_ns == written.st_mtime_ns

    assert "tuning" not in start(tmp_path, tuning_seconds=0.0)
    assert chosen() == untuned()
    for num_rows in ROWS:
        want = logits(tmp_path, num_rows)
        error = (found[num_rows] - want).norm() / want.norm()
        assert error < 2e-2, (num_rows, error)
        assert torch.isfinite(found[num_rows]).all()
