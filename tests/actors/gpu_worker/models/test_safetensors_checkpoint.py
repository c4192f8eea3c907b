"""Safetensors directories: shards, types, and files that are missing or broken."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import Runner, load, make_reference, random_tokens, reference_logits
from transformers import AutoModelForCausalLM

from pillion.actors.gpu_worker.models.safetensors_checkpoint import SafetensorsCheckpoint
from pillion.runtime.errors import ModelError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_reference("llama").save_pretrained(tmp_path)
    return tmp_path


def test_shards_equal_a_single_file(tmp_path: Path) -> None:
    reference = make_reference("llama")
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    tokens = random_tokens(20)
    logits = Runner(load(tmp_path)).run(0, tokens, [20])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_widened_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    make_reference("qwen3").to(dtype).save_pretrained(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = random_tokens(20)
    loaded = load(tmp_path)
    assert loaded.config.dtype == dtype
    logits = Runner(loaded).run(0, tokens, [20])
    expected = reference_logits(reference, tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    victim = sorted(tmp_path.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelError, match=f"missing: .*{victim.name}"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("length", [0, 5, 100, -1000])
def test_a_file_that_is_cut_off_is_named(directory: Path, length: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"model\.safetensors is cut off"):
        SafetensorsCheckpoint(directory)


def test_a_directory_without_weights_says_so(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors"):
        SafetensorsCheckpoint(directory)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is in none"):
        load(directory)


def test_a_wrong_shape_is_named_with_both_shapes(directory: Path) -> None:
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 161}))
    with pytest.raises(
        ModelError, match=r"embed_tokens.* \[160, 64\]; config.json says \[161, 64\]"
    ):
        load(directory)


def test_a_type_that_needs_scales_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, path)
    with pytest.raises(ModelError, match=rf"{name} is of type F8_E4M3"):
        load(directory)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"weight_map": {"a": "../b.safetensors"}}', '{"weight_map": [1]}']
)
def test_a_broken_index_is_named(text: str, directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"index\.json"):
        SafetensorsCheckpoint(directory)
