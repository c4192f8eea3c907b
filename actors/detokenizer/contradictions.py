"""Sampling parameters of which each alone makes sense, and which together leave no token to sample."""

from collections.abc import Set
from typing import Final

from pillion.messages.sampling import SamplingParams
from pillion.runtime.errors import InvalidRequest

# The lowest bias; those who know it from elsewhere mean "never" by it.
NEVER_BIAS: Final = -100.0


def check_some_token_is_left(
    params: SamplingParams, end_ids: Set[int], bad_words: list[list[int]]
) -> None:
    """Raises InvalidRequest that names every field which forbids a part of `allowed_token_ids`, if all is forbidden."""
    allowed = set(params.allowed_token_ids or ())
    forbidden: dict[str, Set[int]] = {
        "bad_words": {word[0] for word in bad_words if len(word) == 1},
        "logit_bias": {i for i, bias in (params.logit_bias or {}).items() if bias == NEVER_BIAS},
        # Before them no token may end the answer.
        "min_tokens": end_ids if params.min_tokens else set(),
    }
    if not allowed or allowed - set().union(*forbidden.values()):
        return
    names = [name for name, token_ids in forbidden.items() if token_ids & allowed]
    reasons = {
        "bad_words": "bad_words",
        "logit_bias": f"a logit_bias of {NEVER_BIAS:g}",
        "min_tokens": "min_tokens (tokens that end the answer)",
    }
    why = " and ".join(reasons[name] for name in names)
    raise InvalidRequest(
        f"allowed_token_ids and {' and '.join(names)} contradict each other: each of the {len(allowed)} allowed"
        f" tokens is forbidden by {why}",
        "allowed_token_ids",
    )
