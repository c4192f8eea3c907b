"""How to pick tokens: what a client asks for, and what the engine is told.

`SamplingParams` is the public class, with names and defaults as vLLM users know them. The text edge
resolves it (token ids of bad words, end-of-sequence ids, budget, seed) into a `TokenSampling`, which is
all that scheduler and worker ever see.
"""

import copy
from typing import Final, Self

import msgspec

from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.messages.value_checks import (
    check_integer,
    check_number,
    check_strings,
    check_token_ids,
    plain_integer,
    plain_number,
    shown,
)

MAX_N: Final = 128
MAX_LOGPROBS: Final = 64
MAX_STOP_STRINGS: Final = 64
MAX_STOP_STRING_CHARS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_LOGIT_BIAS: Final = 1024
MAX_BAD_WORDS: Final = 256
MAX_TOP_K: Final = 2**31 - 1
# In terms of tokens. A bad word may become several sequences (with and without a space in front).
MAX_BAD_WORD_SEQUENCES: Final = 2 * MAX_BAD_WORDS
MAX_BAD_WORD_TOKENS: Final = 32
# A sequence's stop ids and the model's end-of-sequence ids together.
MAX_END_TOKEN_IDS: Final = MAX_STOP_TOKEN_IDS + 32


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the answer to one prompt is sampled.

    temperature 0 is greedy, and so is anything below 1e-5. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 switch
    a filter off. `max_tokens` None means as many as fit. `seed` makes a request repeatable whatever else
    runs beside it; -1 is the same as None. Where bad words of several tokens leave nothing of
    `allowed_token_ids` at some place, the best of these is taken all the same. Raises TypeError for an unknown name,
    and ValueError (from `verify`) with the field's name and its limits.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self.verify()

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def clone(self) -> Self:
        """A deep copy."""
        return copy.deepcopy(self)

    def verify(self) -> None:
        """Raises ValueError for the first field whose value makes no sense for any model.

        Numbers of other libraries (NumPy's) and tuples become Python's numbers and lists first.
        """
        self._normalize()
        check_integer("n", self.n, 1, MAX_N)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p must be above 0 and at most 1, got 0")
        check_integer("top_k", self.top_k, -1, MAX_TOP_K)
        check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        check_integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if isinstance(value, int) and value == -1:
                raise ValueError(
                    f"{name}=-1 (every token) is not supported, at most {MAX_LOGPROBS}"
                )
            if value is not None:
                check_integer(name, value, 0, MAX_LOGPROBS)
        if self.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, 2**31 - 1)
        self._verify_flags()
        self._verify_lists()
        self._verify_structure()

    def _normalize(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if type(value) is not float:
                setattr(self, name, plain_number(value))
        for name in _INTEGERS:
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                setattr(self, name, plain_integer(value))
        for name in _LISTS:
            values = getattr(self, name)
            if isinstance(values, list | tuple):
                setattr(self, name, [plain_integer(value) for value in values])
        if isinstance(self.logit_bias, dict):
            self.logit_bias = {
                plain_integer(token_id): plain_number(bias)
                for token_id, bias in self.logit_bias.items()
            }
        if isinstance(self.seed, int) and self.seed == -1:
            self.seed = None
        if isinstance(self.structured_outputs, dict):
            try:
                self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)
            except TypeError as error:
                raise ValueError(f"structured_outputs: {error}") from error

    def _verify_flags(self) -> None:
        for name in (
            "include_stop_str_in_output",
            "ignore_eos",
            "detokenize",
            "skip_special_tokens",
            "spaces_between_special_tokens",
        ):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r:.80}")

    def _verify_lists(self) -> None:
        if self.stop is not None:
            if not isinstance(self.stop, str | list):
                raise ValueError(
                    f"stop must be a string or a list of strings, got {shown(self.stop)}"
                )
            check_strings("stop", self.stop_strings, MAX_STOP_STRINGS, MAX_STOP_STRING_CHARS)
        if self.stop_strings and not self.detokenize:
            raise ValueError("stop needs detokenize=True: stop strings are found in the text")
        if self.bad_words is not None:
            check_strings("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_STOP_STRING_CHARS)
        check_token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        check_token_ids("allowed_token_ids", self.allowed_token_ids, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids must name at least one token, got an empty list")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise ValueError(
                    f"logit_bias must map token ids to numbers, got {shown(self.logit_bias)}"
                )
            check_token_ids("logit_bias", list(self.logit_bias), MAX_LOGIT_BIAS)
            for token_id, bias in self.logit_bias.items():
                check_number(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    def _verify_structure(self) -> None:
        structure = self.structured_outputs
        if structure is None:
            return
        if not isinstance(structure, StructuredOutputsParams):
            raise ValueError(
                f"structured_outputs takes StructuredOutputsParams, got {shown(structure)}"
            )
        if self.allowed_token_ids is not None:
            raise ValueError(
                "allowed_token_ids and structured_outputs exclude each other: together they may allow nothing"
            )


class TokenSampling(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`SamplingParams` in terms of tokens. All ids are inside the vocabulary; `seed` is always set."""

    temperature: float
    top_k: int  # 0: off
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    # Noise is a function of (seed, position, token id); sample i of a request uses its own seed.
    seed: int
    # Ids that end the sequence, end-of-sequence ids included unless the client ignores them.
    stop_token_ids: list[int]
    # Output tokens before which no stop id may be sampled.
    min_tokens: int
    # Output tokens at which the sequence ends with "length".
    max_tokens: int
    logprobs: int | None  # top-n beside the sampled token's
    prompt_logprobs: int | None
    logit_bias: dict[int, float]
    allowed_token_ids: list[int]  # empty: all
    bad_words: list[list[int]]  # token sequences of which the last may not follow the others
    # Nothing is sampled at a position before its TokenMasks row has come.
    needs_masks: bool = False

    @property
    def uses_penalties(self) -> bool:
        """Whether any penalty differs from its neutral value."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


_NUMBERS: Final = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "min_p",
)
_INTEGERS: Final = (
    "n",
    "top_k",
    "seed",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
)
_LISTS: Final = ("stop", "stop_token_ids", "bad_words", "allowed_token_ids")
