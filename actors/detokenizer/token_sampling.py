"""From what a client asks for to what scheduler and worker are told."""

import secrets
from typing import Final

from pillion.actors.detokenizer.contradictions import check_some_token_is_left
from pillion.actors.detokenizer.request_checks import check_token_ids
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.messages.sampling import (
    MAX_BAD_WORD_SEQUENCES,
    MAX_BAD_WORD_TOKENS,
    MAX_END_TOKEN_IDS,
    SamplingParams,
    TokenSampling,
)
from pillion.runtime.errors import InvalidRequest

_MASK_64: Final = 2**64 - 1
_MASK_63: Final = 2**63 - 1
_GOLDEN_RATIO: Final = 0x9E3779B97F4A7C15


def resolve_sampling(
    params: SamplingParams,
    end_ids: frozenset[int],
    bad_words: list[list[int]],
    num_prompt_tokens: int,
    vocab_size: int,
    max_model_len: int,
    needs_masks: bool = False,
) -> TokenSampling:
    """The parameters in terms of tokens. `max_tokens` is cut to what fits behind the prompt.

    Raises InvalidRequest for ids outside the vocabulary, for min_tokens that do not fit, and for parameters
    that contradict each other.
    """
    stop_ids = params.stop_token_ids or []
    check_token_ids("stop_token_ids", stop_ids, vocab_size)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or [], vocab_size)
    check_token_ids("logit_bias", list(params.logit_bias or ()), vocab_size)
    ends = set(stop_ids) if params.ignore_eos else {*stop_ids, *end_ids}
    if len(ends) > MAX_END_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids and the model's own end ids are {len(ends)}, at most {MAX_END_TOKEN_IDS}",
            "stop_token_ids",
        )
    room = max_model_len - num_prompt_tokens
    if params.min_tokens > room:
        raise InvalidRequest(
            f"min_tokens is {params.min_tokens}, but behind a prompt of {num_prompt_tokens} tokens there is"
            f" room for {room} (max_model_len is {max_model_len})",
            "min_tokens",
        )
    check_some_token_is_left(params, ends, bad_words)
    return TokenSampling(
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=0,  # NewRequest.seeds has each sample's own
        stop_token_ids=sorted(token_id for token_id in ends if token_id < vocab_size),
        min_tokens=params.min_tokens,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        logit_bias=params.logit_bias or {},
        allowed_token_ids=params.allowed_token_ids or [],
        bad_words=bad_words,
        needs_masks=needs_masks,
    )


def bad_word_ids(words: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The token sequences that spell these words, at the start of a text and behind a space.

    Raises InvalidRequest for a word without tokens or with too many.
    """
    sequences: list[list[int]] = []
    for word in words:
        bare = word.lstrip(" ")
        for spelling in (bare, " " + bare):
            token_ids = tokenizer.encode(spelling, add_special_tokens=False) if bare else []
            if not 1 <= len(token_ids) <= MAX_BAD_WORD_TOKENS:
                raise InvalidRequest(
                    f"bad_words takes words of 1 to {MAX_BAD_WORD_TOKENS} tokens,"
                    f" {word!r:.80} has {len(token_ids)}",
                    "bad_words",
                )
            if token_ids not in sequences:
                sequences.append(token_ids)
    if len(sequences) > MAX_BAD_WORD_SEQUENCES:
        raise InvalidRequest(
            f"bad_words are {len(sequences)} token sequences, at most {MAX_BAD_WORD_SEQUENCES}",
            "bad_words",
        )
    return sequences


def sample_seeds(seed: int | None, n: int) -> list[int]:
    """A seed for each of n samples: the first uses the request's own (None: a random one).

    Sample i > 0 uses the lower 63 bits of SplitMix64's output function at seed + i * golden ratio.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    first = secrets.randbits(63) if seed is None else seed
    return [first, *(_split_mix(first + index * _GOLDEN_RATIO) & _MASK_63 for index in range(1, n))]


def _split_mix(state: int) -> int:
    state &= _MASK_64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return state ^ (state >> 31)
