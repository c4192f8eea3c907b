"""The specification in torch, and the CPU path."""

import torch
from torch.nn.functional import embedding

from pillion.kernels.fused_linear.scaled import Scaled


def embed_tokens(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    embedding_table: torch.Tensor,
    cos_sin_table: torch.Tensor,
    dtype: torch.dtype,
    gain: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, Scaled | None]:
    """See `pillion.kernels.embed_tokens.embed_tokens`."""
    x = embedding(input_ids, embedding_table).to(dtype)
    cos_sin = cos_sin_table.index_select(0, positions)
    if gain is None:
        return x, cos_sin, None
    squares = x.float().square().sum(1)[None]
    return x, cos_sin, Scaled((x.float() * gain.float()).to(dtype), squares)
