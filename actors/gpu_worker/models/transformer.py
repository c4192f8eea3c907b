"""The one decoder: Llama, Mistral, Qwen2 and Qwen3 are this with different settings."""

from collections.abc import Sequence

import torch
from torch.nn.functional import embedding

from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.layers.decoder_layer import DecoderLayer
from pillion.actors.gpu_worker.layers.rotary import RotaryEmbedding
from pillion.actors.gpu_worker.quantization.linear import Linear
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.kernels.rms_norm import rms_norm_add


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

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KvCache,
        attention: AttentionInputs,
    ) -> torch.Tensor:
        """Hidden states behind the last norm, [num_tokens, hidden_size].

        input_ids, positions [num_tokens] int64. Writes: kv_cache, at the tokens of this step.
        """
        cos_sin = self._rotary.cos_sin(positions)
        residual = embedding(input_ids, self._embedding_table).to(self.dtype)
        x = torch.zeros_like(residual)
        for index, layer in enumerate(self._layers):
            x, residual = layer.apply(x, residual, cos_sin, kv_cache.layer(index), attention)
        return rms_norm_add(x, residual, self._final_norm, self._eps)[0]

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of every next token, [n, hidden_size] to [n, vocab_size] float32."""
        return self._head.apply(hidden).float()
