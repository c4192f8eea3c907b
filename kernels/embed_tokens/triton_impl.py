"""One launch, a program per token: both lookups, and the stream's row times the gain with the sum of its squares."""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pillion.kernels.fused_linear.scaled import Scaled


@triton.jit
def _embed_tokens_kernel(
    input_ids_ptr,
    positions_ptr,
    embedding_ptr,
    cos_sin_table_ptr,
    gain_ptr,
    x_ptr,
    cos_sin_ptr,
    scaled_ptr,
    squares_ptr,
    embedding_stride,
    hidden_size,
    num_angles,
    BLOCK: tl.constexpr,
    ANGLES: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    mask = d < hidden_size
    if SCALED:
        gain = tl.load(gain_ptr + d, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(input_ids_ptr + row)
    position = tl.load(positions_ptr + row)
    x = tl.load(embedding_ptr + token * embedding_stride + d, mask=mask, other=0.0)
    i = tl.arange(0, ANGLES)
    angles = tl.load(cos_sin_table_ptr + position * num_angles + i, mask=i < num_angles, other=0.0)
    rounded = x.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + row * hidden_size + d, rounded, mask=mask)
    tl.store(cos_sin_ptr + row * num_angles + i, angles, mask=i < num_angles)
    if SCALED:
        value = rounded.to(tl.float32)
        scaled = (value * gain).to(scaled_ptr.dtype.element_ty)
        tl.store(scaled_ptr + row * hidden_size + d, scaled, mask=mask)
        tl.store(squares_ptr + row, tl.sum(value * value, axis=0))


def embed_tokens(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    embedding_table: torch.Tensor,
    cos_sin_table: torch.Tensor,
    dtype: torch.dtype,
    gain: torch.Tensor | None,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, Scaled | None]:
    """See `pillion.kernels.embed_tokens.embed_tokens`."""
    num_tokens, hidden_size = len(input_ids), embedding_table.shape[1]
    device = input_ids.device
    x = torch.empty((num_tokens, hidden_size), dtype=dtype, device=device)
    cos_sin = torch.empty((num_tokens, *cos_sin_table.shape[1:]), device=device)
    scaled = None
    if gain is not None:
        squares = torch.empty((1, num_tokens), device=device)
        scaled = Scaled(torch.empty_like(x), squares)
    if not num_tokens:
        return x, cos_sin, scaled
    num_angles = cos_sin_table[0].numel()
    block = triton.next_power_of_2(hidden_size)
    _embed_tokens_kernel[(num_tokens,)](
        input_ids,
        positions,
        embedding_table,
        cos_sin_table,
        gain,
        x,
        cos_sin,
        None if scaled is None else scaled.x,
        None if scaled is None else scaled.squares,
        embedding_table.stride(0),
        hidden_size,
        num_angles,
        BLOCK=block,
        ANGLES=triton.next_power_of_2(num_angles),
        SCALED=scaled is not None,
        PDL=pdl,
        num_warps=min(16, max(1, block // 512)),
        **({"launch_pdl": True} if pdl else {}),
    )
    return x, cos_sin, scaled
