"""Writes a model of transformers as a GGUF file, as llama.cpp's converter does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    model: Any,
    path: Path,
    quantization: str = "F32",
    metadata: Callable[[gguf.GGUFWriter, str], None] | None = None,
    extra_tensors: dict[str, torch.Tensor] | None = None,
) -> None:
    """Matrices are stored as `quantization` says, vectors in F32; `metadata` adds keys."""
    config = model.config
    architecture = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_eos_token_id(2)
    if metadata is not None:
        metadata(writer, architecture)
    tensors = {_gguf_name(name): value for name, value in model.named_parameters()}
    for name, value in (tensors | (extra_tensors or {})).items():
        array = value.detach()
        if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
            array = _interleaved(array, head_dim)
        _add(writer, name, array.float().numpy(), quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def _interleaved(array: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows (or elements of a bias) of each head as llama.cpp's rotation wants them: pairs are neighbours."""
    heads = array.reshape(-1, 2, head_dim // 2, *array.shape[1:])
    return heads.transpose(1, 2).reshape(array.shape).contiguous()


def _add(writer: gguf.GGUFWriter, name: str, array: Any, quantization: str) -> None:
    kind = gguf.GGMLQuantizationType[quantization]
    if array.ndim == 1 or quantization == "F32":
        writer.add_tensor(name, array.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
