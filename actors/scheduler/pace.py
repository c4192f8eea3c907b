"""How many tokens of prompts a step may take beside streams that run."""

from typing import Final

from pillion.messages.steps import StepTimes

# A step with prompts may last so many steps without.
SLOWDOWN: Final = 2.0
# More than one prompt and another for each so many streams are a crowd, for which nothing is held back.
STREAMS_PER_PROMPT: Final = 8
# Tokens take at least so much of the time that any prompt costs a step.
LEAST_SHARE: Final = 0.5
# Tokens of the first pieces of a prompt; streams count if that leaves half of them. Steps of so many tokens may take
# the kernels of decode steps.
FIRST_TOKENS: Final = 256
# Tokens of prompts, however slow they are.
LEAST_TOKENS: Final = 64
# A step has at most so many times the tokens of those that showed the price.
GROWTH: Final = 2.0
# How much of an estimate the newest step decides.
_DECODE_SHARE: Final = 0.2
_TOKEN_SHARE: Final = 0.4
# A step that took so many times longer than expected counts as so much: something else held it up.
_OUTLIER: Final = 3.0
# Steps whose numbers of tokens differ by this share show what any prompt costs and what each token does.
_TELLING_SPREAD: Final = 0.25
# No more than this share of what prompts cost is taken for what any prompt does.
_MOST_FIXED: Final = 0.8


class Pace:
    """Learns from the times between answers what a decode step takes, any prompt beside it, and each token of one.

    A long prompt then goes in pieces that let the next token of each stream be at most `SLOWDOWN` times as long
    in coming. But what any prompt costs is not paid for less than `LEAST_SHARE` of it spent on tokens: smaller pieces
    would make steps hardly shorter, and many more. Where many prompts wait nothing is held back: small pieces would
    make all of them wait for long.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_ns: float | None = None
        self._prompts = _PromptCosts()
        self._largest = 0.0  # tokens of recent steps
        self._follows_streams_alone = False  # the newest step that taught anything had no prompts
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
        self._follows_streams_alone = num_tokens == 0
        if num_tokens == 0:
            if self._decode_ns is None:
                self._prompts.take_off(step_ns)
            elif self._decode_ns:
                step_ns = min(step_ns, _OUTLIER * self._decode_ns)
            self._decode_ns = _blend(self._decode_ns, step_ns, _DECODE_SHARE)
        elif times.num_decode_tokens:
            # Where streams have not had a step alone yet, this counts as what any prompt costs.
            self._prompts.note(num_tokens, max(0.0, step_ns - (self._decode_ns or 0.0)))
            self._largest = max(num_tokens, _blend(self._largest, num_tokens, _TOKEN_SHARE))

    def tokens(self, num_streams: int, num_prompts: int) -> int:
        """The most tokens of so many prompts in a step with so many streams."""
        if (num_prompts - 1) * STREAMS_PER_PROMPT >= num_streams:
            return self._max_tokens
        first = FIRST_TOKENS - num_streams if 2 * num_streams <= FIRST_TOKENS else FIRST_TOKENS
        wanted = float(first)
        fixed_ns, token_ns = self._prompts.fixed_ns, self._prompts.token_ns
        if token_ns and (self._decode_ns is not None or fixed_ns):
            spare_ns = (SLOWDOWN - 1) * (self._decode_ns or 0.0) - fixed_ns
            wanted = max(spare_ns, LEAST_SHARE * fixed_ns) / token_ns
            wanted = min(wanted, GROWTH * max(self._largest, LEAST_TOKENS))
        if self._follows_streams_alone:
            # What prompts showed before may be long ago, and large pieces never show that small ones cost less.
            wanted = min(wanted, first)
        return int(min(max(wanted, LEAST_TOKENS), self._max_tokens))


class _PromptCosts:
    """What prompts add to a step, as a line through the times of recent steps.

    The newest weigh most. Where all of them have about as many tokens, they show no line: what any prompt costs stays
    as it was found then, and what each token does follows.
    """

    def __init__(self) -> None:
        self.fixed_ns = 0.0  # any prompt
        self.token_ns = 0.0  # each token; 0: not known
        self._tokens = 0.0  # weighted means and central moments
        self._ns = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    def note(self, num_tokens: int, ns: float) -> None:
        """So many tokens of prompts made a step so much longer."""
        if self.token_ns:
            ns = min(ns, _OUTLIER * (self.fixed_ns + self.token_ns * num_tokens))
            self._blend(num_tokens, ns)
        else:
            self._tokens, self._ns = float(num_tokens), ns
        if self._variance >= (_TELLING_SPREAD * self._tokens) ** 2:
            self.fixed_ns = self._ns - self._tokens * self._covariance / self._variance
        self.fixed_ns = min(max(self.fixed_ns, 0.0), _MOST_FIXED * self._ns)
        self.token_ns = (self._ns - self.fixed_ns) / self._tokens

    def take_off(self, ns: float) -> None:
        """So much of what was counted for any prompt is due to something else."""
        ns = min(ns, self.fixed_ns)
        self.fixed_ns -= ns
        self._ns -= ns

    def _blend(self, num_tokens: int, ns: float) -> None:
        tokens_off, ns_off = num_tokens - self._tokens, ns - self._ns
        self._tokens += _TOKEN_SHARE * tokens_off
        self._ns += _TOKEN_SHARE * ns_off
        rest = 1 - _TOKEN_SHARE
        self._variance = rest * (self._variance + _TOKEN_SHARE * tokens_off**2)
        self._covariance = rest * (self._covariance + _TOKEN_SHARE * tokens_off * ns_off)


def _blend(old: float | None, new: float, share: float) -> float:
    return new if old is None else old + share * (new - old)
