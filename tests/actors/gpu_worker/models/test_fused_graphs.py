"""Captured decode steps of fused layers, whose launches overlap, are their launches one by one to the last bit."""

from pathlib import Path

import pytest
import torch
from tiny_models import SIZES
from tiny_worker import tiny_config

from pillion.actors.gpu_worker.bare_steps import BareSteps, Rows
from pillion.actors.gpu_worker.start_up import start_stages
from pillion.kernels.fused_linear import tiles
from pillion.kernels.fused_linear.tiles import Choice, Tile, WideTile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FORMS: list[Choice] = [
    None,
    Tile(16, 64, 4, 2, prefetch_bytes=256, early=True),
    WideTile(16, 64, 4, 2, 2, 8, 256),
    WideTile(16, 64, 4, 2, 1, 8, programs=5),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_captured_step_is_its_launches_one_by_one(
    form: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, ffn, dim = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["head_dim"]
    num_heads, num_kv_heads = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    shapes: list[tuple[tiles.Kind, int, int]] = [
        ("qkv", (num_heads + 2 * num_kv_heads) * dim, hidden),
        ("add", hidden, num_heads * dim),
        ("gated", 2 * ffn, hidden),
        ("add", hidden, ffn),
    ]
    monkeypatch.setattr(
        tiles, "MEASURED", {shape: {1: form, 8: form, 16: form} for shape in shapes}
    )
    config = tiny_config(
        tmp_path, "cuda", dtype="bfloat16", max_num_seqs=10, num_kv_blocks=64, tuning_seconds=0.0
    )
    stages, geometry = start_stages(config, 1, lambda phase: None)
    bare, eager = BareSteps(stages, geometry, 1), stages.input_preparer._eager
    for num_rows in (1, 3, 8, 10):
        rows = Rows(num_rows, 5, 20)
        bare.seat(rows)
        graph = bare.graph(num_rows)
        slots_np = graph.inputs.slots.cpu().numpy().astype("int32")
        with torch.inference_mode():
            # The state stays as it is between forward passes, and the cache gets what it has.
            want = stages.executor.execute(eager.decode_inputs(eager.decode_constants(slots_np)))
            assert want.logits is not None
            expected = want.logits[:num_rows].clone()
            assert expected.isfinite().all()
            for _ in range(5):
                got = graph.replay(num_rows)
                assert got.logits is not None
                assert torch.equal(got.logits, expected)
        bare.release(rows)
