"""How many tokens of prompts a step may take beside streams that run."""

from typing import Final

from pillion.messages.steps import StepTimes

# A step with prompts may last so many steps without.
SLOWDOWN: Final = 2.0
# More than one prompt and another for each so many streams are a crowd, for which nothing is held back.
STREAMS_PER_PROMPT: Final = 8
# Tokens before anything was measured, and however slow they are.
FIRST_TOKENS: Final = 256
LEAST_TOKENS: Final = 64
# A step has at most so many times the tokens of those that showed the price.
GROWTH: Final = 2.0
# How much of an estimate the newest step decides.
_DECODE_SHARE: Final = 0.2
_TOKEN_SHARE: Final = 0.4
# A step that took so many times longer than expected counts as so much: something else held it up.
_OUTLIER: Final = 3.0


class Pace:
    """Learns from the times between answers what a decode step and a prompt's token take.

    A long prompt then goes in pieces that let the next token of each stream be at most `SLOWDOWN` times as long
    in coming. Where many prompts wait nothing is held back: small pieces would make all of them wait for long.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_ns: float | None = None
        self._token_ns: float | None = None
        self._largest = 0.0  # tokens of recent steps
        self._last_answer_ns: int | None = None

    def note(self, times: StepTimes | None, sent_ns: int, answered_ns: int) -> None:
        """A step was answered; `sent_ns`: when the worker was granted it."""
        before, self._last_answer_ns = self._last_answer_ns, answered_ns
        # Else the worker may have waited for the plan.
        was_granted_in_time = before is not None and sent_ns <= before
        if times is None or before is None or not was_granted_in_time:
            return
        step_ns = float(answered_ns - before)
        if times.num_prefill_tokens == 0:
            self._decode_ns = _blend(self._decode_ns, step_ns, _DECODE_SHARE)
        elif self._decode_ns is not None and times.num_decode_tokens:
            self._note_prompts(times.num_prefill_tokens, max(0.0, step_ns - self._decode_ns))

    def _note_prompts(self, num_tokens: int, ns: float) -> None:
        """So many tokens of prompts made a step so much longer."""
        if self._token_ns:
            ns = min(ns, _OUTLIER * self._token_ns * num_tokens)
        self._token_ns = _blend(self._token_ns, ns / num_tokens, _TOKEN_SHARE)
        self._largest = max(num_tokens, _blend(self._largest, num_tokens, _TOKEN_SHARE))

    def tokens(self, num_streams: int, num_prompts: int) -> int:
        """The most tokens of so many prompts in a step with so many streams."""
        if (num_prompts - 1) * STREAMS_PER_PROMPT >= num_streams:
            return self._max_tokens
        wanted = float(FIRST_TOKENS)
        if self._decode_ns is not None and self._token_ns:
            wanted = (SLOWDOWN - 1) * self._decode_ns / self._token_ns
            wanted = min(wanted, GROWTH * max(self._largest, LEAST_TOKENS))
        return int(min(max(wanted, LEAST_TOKENS), self._max_tokens))


def _blend(old: float | None, new: float, share: float) -> float:
    return new if old is None else old + share * (new - old)
