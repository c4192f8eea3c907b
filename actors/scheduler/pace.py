"""How many tokens of prompts a step may take beside streams that run."""

from typing import Final

from pillion.messages.steps import StepTimes

# A step with prompts may last so many steps without.
SLOWDOWN: Final = 2.0
# ... and longer the more prompts wait beside a stream: so much for each that is not alone.
WAITING_WEIGHT: Final = 4.0
# Where prompts cost much whatever their length, at most so much of their time is not for their tokens.
LARGEST_FIXED_SHARE: Final = 0.5
# Tokens before anything was measured, and however slow they are.
FIRST_TOKENS: Final = 256
LEAST_TOKENS: Final = 64
# No step has so many more tokens than those before it showed the price of.
GROWTH: Final = 2.0
# How much of an estimate the newest step decides.
_DECODE_SHARE: Final = 0.2
_PROMPT_SHARE: Final = 0.2
# Sizes differ too little to tell what is fixed if their deviation is below this part of their mean.
_LEAST_SPREAD: Final = 0.1


class _Line:
    """What prompts add to a step, as a line over their tokens: a moving least-squares fit."""

    def __init__(self) -> None:
        self._tokens = self._ns = self._tokens_squared = self._tokens_ns = 0.0
        self.is_known = False
        self.fixed_ns = 0.0
        self.token_ns = 0.0

    def add(self, num_tokens: int, ns: float) -> None:
        """A step's prompts had so many tokens and took so long."""
        share = _PROMPT_SHARE if self.is_known else 1.0
        self.is_known = True
        self._tokens += share * (num_tokens - self._tokens)
        self._ns += share * (ns - self._ns)
        self._tokens_squared += share * (num_tokens**2 - self._tokens_squared)
        self._tokens_ns += share * (num_tokens * ns - self._tokens_ns)
        variance = self._tokens_squared - self._tokens**2
        if variance > (_LEAST_SPREAD * self._tokens) ** 2:
            slope = (self._tokens_ns - self._tokens * self._ns) / variance
            self.fixed_ns = self._ns - max(0.0, slope) * self._tokens
        self.fixed_ns = min(max(self.fixed_ns, 0.0), self._ns)
        self.token_ns = (self._ns - self.fixed_ns) / self._tokens


class Pace:
    """Learns from the times between answers what a decode step, a prompt and its tokens take.

    A long prompt then goes in pieces that let the next token of each stream be at most `SLOWDOWN` times as long
    in coming; longer where many prompts wait beside few streams. Where more wait than run nothing is held back:
    more would wait than be disturbed.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_ns: float | None = None
        self._prompts = _Line()
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
        num_tokens = times.num_prefill_tokens
        if num_tokens == 0:
            old = self._decode_ns
            self._decode_ns = step_ns if old is None else old + _DECODE_SHARE * (step_ns - old)
        elif self._decode_ns is not None and times.num_decode_tokens:
            self._prompts.add(num_tokens, max(0.0, step_ns - self._decode_ns))
            self._largest += max(
                num_tokens - self._largest, _PROMPT_SHARE * (num_tokens - self._largest)
            )

    def tokens(self, num_streams: int, num_prompts: int) -> int:
        """The most tokens of so many prompts in a step with so many streams."""
        if num_streams == 0 or num_prompts > num_streams:
            return self._max_tokens
        prompts, wanted = self._prompts, float(FIRST_TOKENS)
        if self._decode_ns is not None and prompts.is_known:
            waiting = WAITING_WEIGHT * (num_prompts - 1) / num_streams
            allowed_ns = (SLOWDOWN * max(1.0, waiting) - 1) * self._decode_ns
            allowed_ns = max(allowed_ns, prompts.fixed_ns / LARGEST_FIXED_SHARE)
            wanted = GROWTH * max(self._largest, FIRST_TOKENS / GROWTH)
            if prompts.token_ns:
                wanted = min(wanted, (allowed_ns - prompts.fixed_ns) / prompts.token_ns)
        return int(min(max(wanted, LEAST_TOKENS), self._max_tokens))
