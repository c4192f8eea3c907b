"""Root mean square normalization."""

import torch

from pillion.kernels.rms_norm import reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (arXiv 1910.07467).

    Statistics and division are in float32; the quotient is rounded to the weight's type before it is scaled.

    x       [..., hidden_size], any strides
    weight  [hidden_size], on a CUDA device of x's type
    returns a new tensor like x, of the weight's type
    """
    if x.is_cuda:
        from pillion.kernels.rms_norm import triton_impl

        return triton_impl.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def rms_norm_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum x + residual, normalized, and the sum itself: (rms_norm(x + residual), x + residual).

    x, residual [n, hidden_size]; weight [hidden_size]; on a CUDA device all of one type. The first result
    has the weight's type, the second the residual's. Both are new tensors or reuse an argument.
    Writes: possibly x and residual.
    """
    if x.is_cuda:
        from pillion.kernels.rms_norm import triton_impl

        return triton_impl.rms_norm_add(x, residual, weight, eps)
    return reference.rms_norm_add(x, residual, weight, eps)
