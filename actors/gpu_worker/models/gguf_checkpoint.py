"""A GGUF file under Hugging Face names, with llama.cpp's reordering of query and key rows undone."""

import re
from pathlib import Path
from typing import Final

import torch

from pillion.actors.gpu_worker.models.gguf_config import read_gguf_config
from pillion.actors.gpu_worker.quantization.gguf_blocks import dequantize, raw_tensor, unpack
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight, StoredTensor
from pillion.runtime.errors import ModelError
from pillion.runtime.gguf_file import GgufFile, GgufTensor

_NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES: Final = {
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
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")
# Types whose codes have four bits and one scale per 32 numbers.
_FOUR_BIT_TYPES: Final = ("Q4_0", "Q4_1", "Q4_K")
# Architectures whose query and key rows llama.cpp's converter reorders for its own rotation.
_REORDERED_ARCHITECTURES: Final = ("llama",)


class GgufCheckpoint:
    """See `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        self.config = read_gguf_config(self._file)
        self._reordered = self._file.string("general.architecture") in _REORDERED_ARCHITECTURES

    def tensor(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """See `Checkpoint.tensor`."""
        gguf_name = _gguf_name(name)
        tensor = self._file.tensors.get(gguf_name)
        if tensor is None:
            raise ModelError(f"{self._file.path}: tensor {gguf_name} is missing")
        if tensor.shape != shape:
            raise ModelError(
                f"{self._file.path}: {gguf_name} has shape {list(tensor.shape)};"
                f" the metadata says {list(shape)}"
            )
        row_order = None
        if self._reordered and (".attn_q." in gguf_name or ".attn_k." in gguf_name):
            row_order = half_split_order(shape[0], self.config.head_dim)
        return _GgufTensorReader(self._file, tensor, row_order)


def half_split_order(num_rows: int, head_dim: int) -> torch.Tensor:
    """Rows of a GGUF query or key matrix in Hugging Face's order, [num_rows] int64.

    llama.cpp rotates neighbours (2i, 2i + 1) of a head and stores rows so; Hugging Face and our kernel
    rotate (i, i + head_dim / 2).
    """
    return torch.arange(num_rows).view(-1, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    layer = _LAYER.fullmatch(stem)
    if layer is None:
        return f"{_NAMES[stem]}.{kind}"
    return f"blk.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{kind}"


class _GgufTensorReader:
    def __init__(self, file: GgufFile, tensor: GgufTensor, row_order: torch.Tensor | None) -> None:
        self.shape = tensor.shape
        self._storage = tensor.type
        self._raw = raw_tensor(file, tensor)
        self._row_order = row_order

    def copy_to(self, out: torch.Tensor) -> None:
        if len(self.shape) == 1:
            # A vector is one row in the file but has one element per row of its matrix.
            numbers = torch.empty(1, self.shape[0])
            dequantize(self._raw, self._storage, numbers)
            out.copy_(numbers[0] if self._row_order is None else numbers[0][self._row_order])
        else:
            dequantize(self._rows(), self._storage, out)

    def four_bit(self) -> FourBitWeight | None:
        if self._storage.name not in _FOUR_BIT_TYPES or len(self.shape) != 2:
            return None
        blocks = unpack(self._rows(), self._storage)
        num_rows = self.shape[0]
        codes, scales, offsets = blocks.codes, blocks.scales, blocks.offsets
        if offsets is None:  # codes around zero
            codes, offsets = (codes + 8).to(torch.uint8), scales * -8
        return FourBitWeight(
            codes.reshape(self.shape), scales.reshape(num_rows, -1), offsets.reshape(num_rows, -1)
        )

    def _rows(self) -> torch.Tensor:
        return self._raw if self._row_order is None else self._raw[self._row_order]
