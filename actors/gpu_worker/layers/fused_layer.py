"""A decoder layer on a CUDA device, with the residual stream in place: five launches in a decode step."""

from dataclasses import dataclass

import torch

from pillion.actors.gpu_worker.layers.decoder_layer import DecoderLayer
from pillion.actors.gpu_worker.quantization.linear import DenseLinear
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.kernels.fused_linear import (
    Scaled,
    composed,
    linear_add,
    norm_gated_linear,
    norm_qkv,
    takes_scaled,
)
from pillion.kernels.paged_attention import paged_attention
from pillion.kernels.rms_norm import rms_norm
from pillion.kernels.silu_and_mul import silu_and_mul


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The weights of a DecoderLayer, seen by kernels that take more than one of its operations at a time."""

    layer: DecoderLayer
    qkv: DenseLinear
    output: DenseLinear
    gate_up: DenseLinear
    down: DenseLinear
    # [hidden_size]: the norm that reads the stream behind this layer
    next_norm: torch.Tensor
    # programmatic dependent launch between this layer's kernels
    pdl: bool

    @classmethod
    def of(cls, layer: DecoderLayer, next_norm: torch.Tensor, *, pdl: bool) -> "FusedLayer | None":
        """None if the layer has something that the fused kernels don't know."""
        attention, feed_forward = layer.attention, layer.feed_forward
        linears = attention.qkv, attention.output, feed_forward.gate_up, feed_forward.down
        qkv, output, gate_up, down = linears
        if not (
            isinstance(qkv, DenseLinear)
            and isinstance(output, DenseLinear)
            and isinstance(gate_up, DenseLinear)
            and isinstance(down, DenseLinear)
        ):
            return None
        if attention.head_norms is not None or gate_up.bias is not None:
            return None
        if any(linear.weight.dtype.itemsize != 2 for linear in (qkv, output, gate_up, down)):
            return None
        return cls(layer, qkv, output, gate_up, down, next_norm, pdl)

    def first_gain(self, num_rows: int) -> torch.Tensor | None:
        """That of this layer's first norm, if so many rows can come with what it needs of them."""
        norm = self.layer.attention_norm
        return norm if takes_scaled("qkv", self.qkv.weight, num_rows) else None

    def apply(
        self,
        x: torch.Tensor,
        scaled: Scaled | None,
        cos_sin: torch.Tensor,
        layer_kv: torch.Tensor,
        attention: AttentionInputs,
    ) -> Scaled | None:
        """The residual stream x [num_tokens, hidden_size] to its next state, in a decode step or a short captured one.

        `scaled` is what the layer before has returned: what this layer's first norm needs, if that is known.
        Writes: x, and layer_kv at the tokens of this step.
        """
        layer, heads = self.layer, self.layer.attention.heads
        q = norm_qkv(
            x,
            layer.attention_norm,
            layer.eps,
            self.qkv.weight,
            self.qkv.bias,
            cos_sin,
            layer_kv,
            attention.slot_mapping,
            heads.num_q_heads,
            scaled,
            pdl=self.pdl,
        )
        attended = paged_attention(
            q,
            layer_kv,
            attention,
            heads.head_dim**-0.5,
            layer.attention.sliding_window,
        )
        gain: torch.Tensor | None = layer.feed_forward_norm
        if not takes_scaled("gated", self.gate_up.weight, len(x)):
            gain = None
        scaled = linear_add(
            attended.flatten(1), self.output.weight, self.output.bias, x, gain, pdl=self.pdl
        )
        gated = norm_gated_linear(
            x, layer.feed_forward_norm, layer.eps, self.gate_up.weight, scaled, pdl=self.pdl
        )
        gain = self.next_norm if takes_scaled("qkv", self.qkv.weight, len(x)) else None
        return linear_add(gated, self.down.weight, self.down.bias, x, gain, pdl=self.pdl)

    def apply_prompts(
        self,
        x: torch.Tensor,
        cos_sin: torch.Tensor,
        layer_kv: torch.Tensor,
        attention: AttentionInputs,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        """The same of another step with prompts: the library's products, which add to the stream themselves.

        wanted [n] int64: returns the stream of these tokens alone, a new tensor [n, hidden_size]; else x.
        Writes: x, and layer_kv at the tokens of this step.
        """
        layer = self.layer
        normed = rms_norm(x, layer.attention_norm, layer.eps)
        attended = layer.attention.attend(normed, cos_sin, layer_kv, attention, wanted)
        if wanted is not None:
            x = x.index_select(0, wanted)
        composed.linear_add(attended, self.output.weight, self.output.bias, x)
        normed = rms_norm(x, layer.feed_forward_norm, layer.eps)
        gated = silu_and_mul(self.gate_up.apply(normed))
        composed.linear_add(gated, self.down.weight, self.down.bias, x)
        return x
