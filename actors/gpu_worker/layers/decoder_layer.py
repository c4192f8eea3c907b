"""One layer of the decoder: attention and feed-forward, each between a norm and the residual stream."""

from dataclasses import dataclass

import torch

from pillion.actors.gpu_worker.quantization.linear import Linear
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.kernels.paged_attention import paged_attention
from pillion.kernels.rms_norm import rms_norm, rms_norm_add
from pillion.kernels.rotary_kv_write import rotary_kv_write
from pillion.kernels.silu_and_mul import silu_and_mul


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How a row of the query-key-value product is cut."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norm of each query and key head before the rotation (Qwen3)."""

    # [head_dim]
    query: torch.Tensor
    # [head_dim]
    key: torch.Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention with grouped key-value heads over the paged cache."""

    qkv: Linear
    output: Linear
    heads: HeadShape
    head_norms: HeadNorms | None
    sliding_window: int | None
    eps: float

    def attend(
        self,
        x: torch.Tensor,
        cos_sin: torch.Tensor,
        layer_kv: torch.Tensor,
        attention: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[num_tokens, hidden_size] to the attended heads [num_tokens, num_q_heads * head_dim].

        wanted [n] int64: only of these tokens, [n, num_q_heads * head_dim]. Writes: layer_kv, at all of them.
        """
        num_q_heads, num_kv_heads = self.heads.num_q_heads, self.heads.num_kv_heads
        head_dim = self.heads.head_dim
        qkv = self.qkv.apply(x).view(-1, num_q_heads + 2 * num_kv_heads, head_dim)
        q, k, v = qkv.split_with_sizes((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
        if self.head_norms is not None:
            q = rms_norm(q, self.head_norms.query, self.eps)
            k = rms_norm(k, self.head_norms.key, self.eps)
        step_kv = None
        if attention.has_whole_prompts:
            step_kv = k.new_empty(k.shape), v
        q = rotary_kv_write(
            q,
            k,
            v,
            cos_sin,
            layer_kv,
            attention.slot_mapping,
            pool_rows=attention.pool_rows,
            rotated_k=step_kv and step_kv[0],
        )
        if wanted is not None and not len(wanted):
            return q.new_empty((0, num_q_heads * head_dim))
        out = paged_attention(q, layer_kv, attention, head_dim**-0.5, self.sliding_window, step_kv)
        out = out.reshape(-1, num_q_heads * head_dim)
        return out if wanted is None else out.index_select(0, wanted)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """down(silu(gate(x)) * up(x)), with gate and up as one product."""

    gate_up: Linear
    down: Linear

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] to a new one."""
        return self.down.apply(silu_and_mul(self.gate_up.apply(x)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The residual stream enters as two addends, so that their sum is fused with the norm after it."""

    # [hidden_size]
    attention_norm: torch.Tensor
    attention: Attention
    # [hidden_size]
    feed_forward_norm: torch.Tensor
    feed_forward: FeedForward
    eps: float

    def apply(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        cos_sin: torch.Tensor,
        layer_kv: torch.Tensor,
        attention: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream x + residual, each [num_tokens, hidden_size], to its next two addends.

        wanted [n] int64: only of these tokens, each [n, hidden_size]. Writes: layer_kv, at the tokens of this step.
        """
        normed, residual = rms_norm_add(x, residual, self.attention_norm, self.eps)
        attended = self.attention.attend(normed, cos_sin, layer_kv, attention, wanted)
        if wanted is not None:
            residual = residual.index_select(0, wanted)
        x = self.attention.output.apply(attended)
        normed, residual = rms_norm_add(x, residual, self.feed_forward_norm, self.eps)
        return self.feed_forward.apply(normed), residual
