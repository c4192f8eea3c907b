"""How many tokens of prompts a step may take beside streams that run."""

from typing import Final

from pillion.messages.steps import StepTimes

# A step with prompts may last so many steps without.
SLOWDOWN: Final = 2.0
# Tokens before anything was measured, and however slow they are.
FIRST_TOKENS: Final = 256
LEAST_TOKENS: Final = 64
# How much of an estimate the newest step decides.
_DECODE_SHARE: Final = 0.2
_TOKEN_SHARE: Final = 0.4


class Pace:
    """Learns from the times between answers what a decode step and a prompt's token take.

    A long prompt then goes in pieces that let the next token of each stream be at most `SLOWDOWN` times as long
    in coming. Where more prompts wait than streams run, nothing is held back: more would wait than be disturbed.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_ns: float | None = None
        self._token_ns: float | None = None
        self._last_answer_ns: int | None = None

    def note(self, times: StepTimes | None, sent_ns: int, answered_ns: int) -> None:
        """A step was answered; `sent_ns`: when the worker was granted it."""
        before, self._last_answer_ns = self._last_answer_ns, answered_ns
        # Else the worker may have waited for the plan.
        was_granted_in_time = before is not None and sent_ns <= before
        if times is None or before is None or not was_granted_in_time:
            return
        step_ns = answered_ns - before
        if times.num_prefill_tokens == 0:
            self._decode_ns = _blend(self._decode_ns, step_ns, _DECODE_SHARE)
        elif self._decode_ns is not None and times.num_decode_tokens:
            token_ns = max(0.0, step_ns - self._decode_ns) / times.num_prefill_tokens
            self._token_ns = _blend(self._token_ns, token_ns, _TOKEN_SHARE)

    def tokens(self, num_streams: int, num_prompts: int) -> int:
        """The most tokens of so many prompts in a step with so many streams."""
        if num_streams == 0 or num_prompts > num_streams:
            return self._max_tokens
        wanted = float(FIRST_TOKENS)
        if self._decode_ns is not None and self._token_ns:
            wanted = (SLOWDOWN - 1) * self._decode_ns / self._token_ns
        return int(min(max(wanted, LEAST_TOKENS), self._max_tokens))


def _blend(old: float | None, new: float, share: float) -> float:
    return new if old is None else old + share * (new - old)
