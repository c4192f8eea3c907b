"""How one step's tokens are shared between prompts."""

from collections.abc import Sequence as Items
from typing import Final

# The part of a step's prefill tokens that a long prompt leaves to short ones behind it.
SHORT_PROMPT_SHARE: Final = 4


def prefill_chunks(prompts: Items[tuple[int, int]], budget: int) -> list[int]:
    """Tokens of each prompt in this step. `prompts` are (priority, tokens left) in order of service.

    Prompts are served in order. But where a prompt does not end in this step, up to a quarter of the
    budget goes first to those of its own priority behind it that do end within that quarter: a short
    prompt waits for steps, not for a long prompt. Without such prompts nothing is set aside.
    """
    chunks = [0] * len(prompts)
    left = budget
    for place, (priority, num_tokens) in enumerate(prompts):
        if num_tokens <= left:
            chunks[place] = num_tokens
            left -= num_tokens
            continue
        spare = min(budget // SHORT_PROMPT_SHARE, left - 1)
        for behind in range(place + 1, len(prompts)):
            other_priority, other_tokens = prompts[behind]
            if other_priority == priority and other_tokens <= spare:
                chunks[behind] = other_tokens
                spare -= other_tokens
                left -= other_tokens
        chunks[place] = left
        break
    return chunks
