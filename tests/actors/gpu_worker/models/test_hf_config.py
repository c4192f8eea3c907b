"""config.json: both spellings, every rope scaling against transformers, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import (
    FAMILIES,
    SIZES,
    Runner,
    load,
    make_reference,
    random_tokens,
    reference_logits,
)

from pillion.actors.gpu_worker.layers.rotary import RotaryEmbedding
from pillion.actors.gpu_worker.models.hf_config import read_hf_config
from pillion.runtime.errors import ModelError

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn_all_settings": {
        "rope_type": "yarn",
        "rope_theta": 20000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "truncate": False,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "attention_factor": 1.3,
        "original_max_position_embeddings": 64,
    },
}

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def read(directory: Path, **fields: Any) -> Any:
    (directory / "config.json").write_text(json.dumps(BASE | fields))
    return read_hf_config(directory)


@pytest.mark.parametrize("name", ROPES)
def test_rope_scalings_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = make_reference("llama", rope_parameters=dict(ROPES[name]))
    reference.save_pretrained(tmp_path)
    tokens = random_tokens(100)
    logits = Runner(load(tmp_path)).run(0, tokens, [90, 10])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ROPES)
def test_both_spellings_of_rope_give_the_same(name: str, tmp_path: Path) -> None:
    new = read(tmp_path, rope_parameters=ROPES[name])
    scaling = {key: value for key, value in ROPES[name].items() if key != "rope_theta"}
    theta = ROPES[name]["rope_theta"]
    old = read(tmp_path, rope_theta=theta, rope_scaling=scaling)
    scaling["type"] = scaling.pop("rope_type")
    oldest = read(tmp_path, rope_theta=theta, rope_scaling=scaling)
    assert new.rope == old.rope == oldest.rope
    assert new.rope.theta == theta


def test_a_config_without_rope_settings_has_the_default(tmp_path: Path) -> None:
    rope = read(tmp_path, rope_scaling=None).rope
    assert (rope.type, rope.theta, rope.factor) == ("default", 10000.0, 1.0)


def test_partial_rotation(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = read(tmp_path, rope_parameters=rope)
    table = RotaryEmbedding(config.rope, config.head_dim, torch.device("cpu"))
    assert table.cos_sin(torch.arange(3)).shape == (3, 2, 4)


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 128),
        (ROPES["linear"], 512),
        (ROPES["dynamic"], 128),
        (ROPES["llama3"], 128),
        (ROPES["yarn"], 128),
        (ROPES["yarn"] | {"factor": 8.0}, 256),
    ],
)
def test_the_longest_sequence(rope: dict[str, Any], longest: int, tmp_path: Path) -> None:
    assert read(tmp_path, rope_parameters=rope).max_positions == longest


def test_optional_fields_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.num_kv_heads == 4
    assert config.head_dim == 16
    assert config.rms_norm_eps == 1e-6
    assert not config.tie_word_embeddings
    assert config.dtype is None
    assert config.sliding_windows == (None,) * 4


@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_both_spellings_of_dtype(field: str, tmp_path: Path) -> None:
    assert read(tmp_path, **{field: "bfloat16"}).dtype == torch.bfloat16


@pytest.mark.parametrize("name", FAMILIES)
def test_families_as_transformers_saves_them(name: str, tmp_path: Path) -> None:
    reference = make_reference(name)
    reference.config.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps(
            json.loads((tmp_path / "config.json").read_text())
            | {"architectures": [type(reference).__name__]}
        )
    )
    config = read_hf_config(tmp_path)
    parameters = {key.rpartition("layers.1.")[2] for key, _ in reference.named_parameters()}
    assert config.qkv_bias == ("self_attn.q_proj.bias" in parameters)
    assert config.output_bias == ("self_attn.o_proj.bias" in parameters)
    assert config.mlp_bias == ("mlp.down_proj.bias" in parameters)
    assert config.qk_norm == ("self_attn.q_norm.weight" in parameters)
    assert config.num_layers == SIZES["num_hidden_layers"]
    windows = [layer.self_attn for layer in reference.model.layers]
    if name == "mistral":
        assert config.sliding_windows == (8, 8, 8)
    else:
        assert config.sliding_windows == tuple(getattr(w, "sliding_window", None) for w in windows)


def test_end_of_sequence_ids_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert read(tmp_path, eos_token_id=2).eos_token_ids == (2, 7)


def test_the_label_that_dequantized_gguf_models_keep_is_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, quantization_config={"quant_method": "gguf"}).vocab_size == 100


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures is .*GPT2LMHeadModel.*Qwen3ForCausalLM"),
        ({"architectures": None}, "architectures is"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be of type int"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be positive"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 must divide 4"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized with 'awq'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.rope_type is 'su'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": ROPES["llama3"] | {"low_freq_factor": None}}, "low_freq_factor is missing"),
        ({"eos_token_id": "2"}, "eos_token_id must be a token id"),
        ({"initializer_range": -0.1}, "initializer_range must not be negative"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {}}},
            "full_attention differs from sliding_attention",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: .*{problem}"):
        read(tmp_path, **fields)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_broken_config_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_hf_config(tmp_path)
