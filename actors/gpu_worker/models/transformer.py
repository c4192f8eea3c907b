"""The one decoder: Llama, Mistral, Qwen2 and Qwen3 are this with different settings."""

from collections.abc import Sequence
from typing import Final

import torch
from torch.nn.functional import embedding

from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.layers.decoder_layer import DecoderLayer
from pillion.actors.gpu_worker.layers.fused_layer import FusedLayer
from pillion.actors.gpu_worker.layers.rotary import RotaryEmbedding
from pillion.actors.gpu_worker.quantization.linear import DenseLinear, Linear
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.kernels.embed_tokens import EmbeddedTokens, embed_tokens
from pillion.kernels.fused_linear import linear_float32
from pillion.kernels.rms_norm import rms_norm, rms_norm_add

_PDL_CAPABILITY = (9, 0)
# Captured steps of up to so many tokens take the products of decode steps, also with prompts: those were measured so
# far. Others with prompts may have any number of tokens, for many of which no start has compiled these products.
MOST_FUSED_TOKENS: Final = 256


class Transformer:
    """A decoder with its weights. The residual stream is of `dtype`."""

    def __init__(
        self,
        embedding_table: torch.Tensor,
        layers: Sequence[DecoderLayer],
        final_norm: torch.Tensor,
        head: Linear,
        rotary: RotaryEmbedding,
        eps: float,
        dtype: torch.dtype,
    ) -> None:
        # [vocab_size, hidden_size]
        self._embedding_table = embedding_table
        self._layers = layers
        # [hidden_size]
        self._final_norm = final_norm
        self._head = head
        self._rotary = rotary
        self._eps = eps
        self.dtype = dtype
        device = embedding_table.device
        # programmatic dependent launch between a step's kernels
        self._pdl = (
            device.type == "cuda" and torch.cuda.get_device_capability(device) >= _PDL_CAPABILITY
        )
        self._fused = _fused_layers(layers, final_norm, device, pdl=self._pdl)

    @property
    def fused_layers(self) -> Sequence[FusedLayer]:
        """The layers as steps on a CUDA device run them; none where they can't be fused."""
        return self._fused

    @property
    def fused_head(self) -> torch.Tensor | None:
        """[vocab_size, hidden_size]: the head's weight, where its product is fused."""
        head = self._head
        if self._fused and isinstance(head, DenseLinear) and head.bias is None:
            return head.weight
        return None

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KvCache,
        attention: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states behind the last norm, [num_tokens, hidden_size].

        input_ids, positions [num_tokens] int64; wanted [n] int64: only of these tokens, [n, hidden_size], for which the
        last layer does no more than the others need, but in short captured steps. Writes: kv_cache, at the tokens of
        this step.
        """
        num_tokens = len(input_ids)
        is_fused = bool(self._fused) and (
            not attention.has_prefill or (attention.is_captured and num_tokens <= MOST_FUSED_TOKENS)
        )
        gain = self._fused[0].first_gain(num_tokens) if is_fused else None
        residual, cos_sin, scaled = self._embed(input_ids, positions, gain)
        if is_fused:
            for index, fused in enumerate(self._fused):
                layer_kv = kv_cache.layer(index)
                scaled = fused.apply(residual, scaled, cos_sin, layer_kv, attention)
            if wanted is not None:
                residual = residual.index_select(0, wanted)
            return rms_norm(residual, self._final_norm, self._eps)
        wanted_of = [*[None] * (len(self._layers) - 1), wanted]
        if self._fused:
            for index, fused in enumerate(self._fused):
                residual = fused.apply_prompts(
                    residual, cos_sin, kv_cache.layer(index), attention, wanted_of[index]
                )
            return rms_norm(residual, self._final_norm, self._eps)
        x = torch.zeros_like(residual)
        for index, layer in enumerate(self._layers):
            x, residual = layer.apply(
                x, residual, cos_sin, kv_cache.layer(index), attention, wanted_of[index]
            )
        return rms_norm_add(x, residual, self._final_norm, self._eps)[0]

    def _embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, gain: torch.Tensor | None
    ) -> EmbeddedTokens:
        """`gain`: of the norm that reads the stream first, if what it needs is to be made."""
        embedding_table, cos_sin_table = self._embedding_table, self._rotary.table
        if cos_sin_table is None:
            x = embedding(input_ids, embedding_table).to(self.dtype)
            return EmbeddedTokens(x, self._rotary.cos_sin(positions), None)
        return embed_tokens(
            input_ids, positions, embedding_table, cos_sin_table, self.dtype, gain, pdl=self._pdl
        )

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of every next token, [n, hidden_size] to [n, vocab_size] float32. Writes: out, if it is given."""
        weight = self.fused_head
        if weight is not None:
            return linear_float32(hidden, weight, out)
        logits = self._head.apply(hidden).float()
        return logits if out is None else out.copy_(logits)


def _fused_layers(
    layers: Sequence[DecoderLayer], final_norm: torch.Tensor, device: torch.device, *, pdl: bool
) -> list[FusedLayer]:
    """The layers for steps on a CUDA device; none if one of them can't be fused."""
    if device.type != "cuda":
        return []
    norms = [layer.attention_norm for layer in layers]
    fused = [
        FusedLayer.of(layer, next_norm, pdl=pdl)
        for layer, next_norm in zip(layers, [*norms[1:], final_norm], strict=True)
    ]
    return [layer for layer in fused if layer is not None] if all(fused) else []
