"""One token per row from its logits: temperature, filters, noise and choice."""

from typing import Final

import torch

from pillion.kernels.sample import cpu, reference

# Below this a temperature counts as 0: the division would push every other token out anyway.
MIN_TEMPERATURE: Final = reference.MIN_TEMPERATURE


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    all_greedy: bool = False,
    any_filter: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token for each row, or takes the best one (lowest id among equals) where temperature is 0.

    With z = (logits - max) / temperature and noise g of (seed, position, token id), the token is
    argmax(z + g) over the tokens that min-p, top-k and top-p keep (see `sampling_threshold`): a draw from
    the softmax of what is kept. A row whose maximum is not finite gets some id inside the vocabulary.

    logits: [n, vocab] float32, may be overwritten. temperature, min_p, top_p: [n] float32. top_k: [n]
    int64, vocab or more is off. seeds, positions: [n] int64. `all_greedy` and `any_filter` are what the host
    knows about the rows, to leave out work. Returns the ids [n] int32 and each row's maximum [n] float32.
    """
    if logits.shape[0] == 0 or all_greedy:
        return reference.greedy(logits)
    if logits.is_cuda:
        from pillion.kernels.sample import triton_impl

        return triton_impl.sample(
            logits, temperature, min_p, top_k, top_p, seeds, positions, any_filter=any_filter
        )
    return cpu.sample(logits, temperature, min_p, top_k, top_p, seeds, positions)
