"""Log-probabilities of given tokens and of the best ones."""

from typing import Final

import torch

from pillion.kernels.token_logprobs import reference

MIN_LOGPROB: Final = reference.MIN_LOGPROB


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log_softmax(logits) of each row's token and of the row's best `num_top` tokens.

    Values are finite: what is below MIN_LOGPROB, or is no number, becomes MIN_LOGPROB. A rank is the number of
    tokens with a strictly greater logit, plus 1. Tokens of equal logit stand in any order among the best.

    logits: [m, vocab] float32. token_ids: [m], any integer type. num_top: up to the vocabulary's size.
    Returns ids [m, 1 + num_top] int32 and logprobs [m, 1 + num_top] float32, both with the given token in
    column 0, and its ranks [m] int32.
    """
    if logits.is_cuda:
        from pillion.kernels.token_logprobs import triton_impl

        return triton_impl.token_logprobs(logits, token_ids, num_top)
    return reference.token_logprobs(logits, token_ids, num_top)


def write_logprobs(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    num_top: torch.Tensor,
    token_ids: torch.Tensor,
    ids: torch.Tensor,
    logprobs: torch.Tensor,
    ranks: torch.Tensor,
) -> None:
    """The same where rows ask for different numbers of best tokens, or for nothing.

    logits: [m, vocab] float32, rows dense. wanted: [m] float32; below 0: not wanted. num_top: [m] int32, at most
    w - 1. token_ids: [m]. Writes: ids [m, w] int32, -1 beyond num_top and where there are no more tokens,
    logprobs [m, w] float32 (any strides, the same of both), ranks [m] int32; what isn't wanted is left as it is.
    """
    if logits.is_cuda:
        from pillion.kernels.token_logprobs import triton_impl

        implementation = triton_impl.write_logprobs
    else:
        implementation = reference.write_logprobs
    implementation(logits, wanted, num_top, token_ids, ids, logprobs, ranks)
