"""One launch for all restricted rows; a program masks a stretch of one row's vocabulary."""

import torch
import triton
import triton.language as tl

_BLOCK = 4096  # tokens of a program


@triton.jit
def _token_bitmask_kernel(
    logits_ptr,
    bitmask_ptr,
    rows_ptr,
    mask_rows_ptr,
    logits_stride,
    num_words,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.load(rows_ptr + tl.program_id(0))
    mask_row = tl.load(mask_rows_ptr + tl.program_id(0))
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    words = tl.load(bitmask_ptr + mask_row * num_words + token // 32, mask=inside, other=-1)
    is_clear = ((words >> (token % 32)) & 1) == 0
    tl.store(logits_ptr + row * logits_stride + token, float("-inf"), mask=inside & is_clear)


def apply_token_bitmask(
    logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor, mask_rows: torch.Tensor
) -> None:
    """See the public function."""
    vocab_size = logits.shape[-1]
    if logits.stride(-1) != 1 or not bitmask.is_contiguous():
        raise ValueError("the rows of logits and bitmask must be dense")
    if len(rows) == 0:
        return
    _token_bitmask_kernel[(len(rows), triton.cdiv(vocab_size, _BLOCK))](
        logits,
        bitmask,
        rows,
        mask_rows,
        logits.stride(0),
        bitmask.shape[1],
        vocab_size,
        BLOCK=_BLOCK,
    )
