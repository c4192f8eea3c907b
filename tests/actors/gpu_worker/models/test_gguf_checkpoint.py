"""GGUF files against the model that they were written from, and broken files."""

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_writer import write_gguf
from tiny_models import (
    FAMILIES,
    Runner,
    load,
    make_reference,
    random_tokens,
    reference_logits,
)

from pillion.actors.gpu_worker.models.gguf_checkpoint import GgufCheckpoint, half_split_order
from pillion.runtime.errors import ModelError

# llama.cpp's own files state no window for these families.
NAMES = [name for name in FAMILIES if "window" not in name and name != "mistral"]


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_file_equals_the_model_it_was_written_from(name: str, tmp_path: Path) -> None:
    reference = make_reference(name)
    path = tmp_path / "tiny.gguf"
    write_gguf(reference, path)
    tokens = random_tokens(30)
    loaded = load(path)
    logits = Runner(loaded).run(0, tokens, [20, 9, 1])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), rtol=1e-4, atol=1e-4)
    assert loaded.config.eos_token_ids == (2,)
    assert loaded.config.initializer_range == 0.02  # which the format has no field for
    assert loaded.config.tie_word_embeddings == reference.config.tie_word_embeddings


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_quantized_weights_are_read_as_the_gguf_package_reads_them(
    quantization: str, tmp_path: Path
) -> None:
    reference = make_reference("llama", hidden_size=64, intermediate_size=96, head_dim=16)
    path = tmp_path / "tiny.gguf"
    write_gguf(reference, path, quantization)
    kind = gguf.GGMLQuantizationType[quantization]
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.ndim == 2:
                stored = gguf.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.dequantize(stored, kind)))
    tokens = random_tokens(20)
    logits = Runner(load(path)).run(0, tokens, [20])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), rtol=1e-4, atol=1e-4)


def test_yarn_comes_from_the_metadata(tmp_path: Path) -> None:
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    reference = make_reference("qwen2", rope_parameters=yarn)

    def metadata(writer: gguf.GGUFWriter, architecture: str) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    path = tmp_path / "yarn.gguf"
    write_gguf(reference, path, metadata=metadata)
    tokens = random_tokens(60)
    logits = Runner(load(path)).run(0, tokens, [60])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), rtol=1e-4, atol=1e-4)


def test_frequencies_of_llama3_come_from_the_file(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    reference = make_reference("llama", rope_parameters=llama3)
    stretched = reference.model.rotary_emb.inv_freq
    exponents = torch.arange(len(stretched), dtype=torch.float32) / len(stretched)
    divisors = 10000.0**-exponents / stretched
    path = tmp_path / "llama3.gguf"
    write_gguf(reference, path, extra_tensors={"rope_freqs.weight": divisors})
    tokens = random_tokens(60)
    logits = Runner(load(path)).run(0, tokens, [60])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), rtol=1e-4, atol=1e-4)


def test_row_order_undoes_the_converter() -> None:
    order = half_split_order(num_rows=8, head_dim=4)
    # llama.cpp keeps element 0 beside element 2 of a head, and 1 beside 3.
    assert order.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (lambda w, a: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
        (lambda w, a: w.add_expert_count(4), "experts"),
    ],
)
def test_what_is_not_supported_is_named(metadata: Any, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    write_gguf(make_reference("llama"), path, metadata=metadata)
    with pytest.raises(ModelError, match=problem):
        GgufCheckpoint(path)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    value = b"falcon"
    key = b"general.architecture"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    with pytest.raises(ModelError, match=r"odd\.gguf.*'falcon'.*llama, qwen2, qwen3"):
        GgufCheckpoint(path)


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    reference = make_reference("llama")
    reference.model.layers[1].mlp.down_proj.weight = None
    path = tmp_path / "hole.gguf"
    write_gguf(reference, path)
    with pytest.raises(ModelError, match=r"hole\.gguf.*blk\.1\.ffn_down\.weight is missing"):
        load(path)
    reference.model.layers[1].mlp.down_proj.weight = torch.nn.Parameter(torch.zeros(64, 64))
    write_gguf(reference, path)
    with pytest.raises(ModelError, match=r"ffn_down\.weight has shape \[64, 64\].*\[64, 96\]"):
        load(path)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    write_gguf(make_reference("llama"), path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"cut\.gguf is cut off"):
        load(path)
