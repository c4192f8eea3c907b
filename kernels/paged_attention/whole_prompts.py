"""Attention of long prompts that a step computes from their first token: cuDNN's, over dense keys and values.

It multiplies half again as fast as the paged kernel on a Hopper card, which pays for making the keys and values dense.
"""

import functools
from typing import Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from pillion.kernels.paged_attention.rows import WholePrompt

_CAPABILITY: Final = (9, 0)
_CUDNN: Final = 90_000
_MOST_HEAD_DIM: Final = 128
# cuDNN takes 35 ms to prepare for a length that it has not seen, and keeps that for good.
_LENGTH_STEP: Final = 512


@functools.lru_cache
def is_fastest(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the device has it, for these heads."""
    return (
        torch.cuda.get_device_capability(device) >= _CAPABILITY
        and (torch.backends.cudnn.version() or 0) >= _CUDNN  # type: ignore[no-untyped-call]
        and dtype.itemsize == 2
        and head_dim % 8 == 0
        and head_dim <= _MOST_HEAD_DIM
    )


def whole_prompt_attention(
    q: torch.Tensor,
    layer_kv: torch.Tensor,
    block_table: torch.Tensor,
    prompt: WholePrompt,
    scale: float,
) -> torch.Tensor:
    """Attention of one prompt, [prompt.length, num_q_heads, head_dim]."""
    _, _, num_kv_heads, block_size, head_dim = layer_kv.shape
    length = prompt.length
    padding = -length % _LENGTH_STEP
    blocks = block_table[prompt.row, : -(-length // block_size)]
    kv = layer_kv.index_select(0, blocks).permute(1, 2, 0, 3, 4)
    kv = kv.reshape(2, 1, num_kv_heads, -1, head_dim)[:, :, :, :length]
    queries = q[prompt.first_token : prompt.first_token + length].transpose(0, 1)[None]
    if padding:
        # No query sees the keys behind it.
        kv, queries = pad(kv, (0, 0, 0, padding)), pad(queries, (0, 0, 0, padding))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attended = scaled_dot_product_attention(
            queries, kv[0], kv[1], is_causal=True, scale=scale, enable_gqa=True
        )
    return attended[0, :, :length].transpose(0, 1)
