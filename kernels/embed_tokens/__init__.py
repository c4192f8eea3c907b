"""Where a step's forward pass begins: embeddings of its tokens, and the angles of their positions."""

from typing import NamedTuple

import torch

from pillion.kernels.embed_tokens import reference
from pillion.kernels.fused_linear.scaled import Scaled


class EmbeddedTokens(NamedTuple):
    """A forward pass from here on."""

    # [n, hidden_size]: the residual stream, of the type that was asked for
    x: torch.Tensor
    # [n, 2, rotary_dim / 2] float32
    cos_sin: torch.Tensor
    # the stream before the first norm, if its gain was given
    scaled: Scaled | None


def embed_tokens(
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    embedding_table: torch.Tensor,
    cos_sin_table: torch.Tensor,
    dtype: torch.dtype,
    gain: torch.Tensor | None = None,
    *,
    pdl: bool = False,
) -> EmbeddedTokens:
    """The rows of both tables that a step's tokens need.

    input_ids, positions  [n] int64; inside the tables
    embedding_table       [vocab_size, hidden_size], rows dense
    cos_sin_table         [max_positions, 2, rotary_dim / 2] float32, dense
    dtype                 of the stream
    gain                  [hidden_size]; of the norm that reads the stream first

    `pdl`: the launch before, on the same stream, lets this one be set up before it ends (programmatic dependent
    launch, compute capability 9.0 and up).
    """
    if input_ids.is_cuda:
        from pillion.kernels.embed_tokens import triton_impl

        return EmbeddedTokens(
            *triton_impl.embed_tokens(
                input_ids, positions, embedding_table, cos_sin_table, dtype, gain, pdl=pdl
            )
        )
    return EmbeddedTokens(
        *reference.embed_tokens(input_ids, positions, embedding_table, cos_sin_table, dtype, gain)
    )
