"""What came of a request, and whether it is what an undisturbed daemon answers."""

from dataclasses import dataclass, field
from typing import Final, Literal

from pillion.messages.ids import FinishReason
from pillion.runtime.chaos.load import ChaosRequest
from pillion.runtime.outputs import CompletionOutput, Logprob, RequestOutput

# Log-probabilities of one token, computed in batches of different sizes, differ by rounding.
LOGPROB_TOLERANCE: Final = 1e-3

# lost: an error in place of an answer, or a part of it is missing; repeated: something came twice; changed: it
# is another answer; stuck: nothing came for too long.
Fault = Literal["lost", "repeated", "changed", "stuck"]
FAULTS: Final[tuple[Fault, ...]] = ("lost", "repeated", "changed", "stuck")


@dataclass(slots=True)
class SampleAnswer:
    """One sample, put together from what the client was given piece by piece."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, new: CompletionOutput) -> None:
        """Takes what is new."""
        self.text += new.text
        self.token_ids += new.token_ids
        self.logprobs += new.logprobs or []
        self.finish_reason = new.finish_reason or self.finish_reason
        self.stop_reason = new.stop_reason if new.stop_reason is not None else self.stop_reason


@dataclass(slots=True)
class Answer:
    """One request as its client saw it."""

    request: ChaosRequest
    samples: list[SampleAnswer]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: str | None = None
    is_stuck: bool = False
    started_ns: int = 0
    ended_ns: int = 0
    arrivals_ns: list[int] = field(default_factory=list)  # of everything that came, for streams

    @classmethod
    def of(cls, request: ChaosRequest) -> "Answer":
        """Nothing has come yet."""
        return cls(request, [SampleAnswer() for _ in range(request.params.n)])

    def add(self, new: RequestOutput) -> None:
        """Takes what is new."""
        for sample in new.outputs:
            self.samples[sample.index].add(sample)
        if new.prompt_logprobs is not None:
            self.prompt_logprobs = (self.prompt_logprobs or []) + new.prompt_logprobs


def find_fault(expected: Answer, answer: Answer) -> tuple[Fault, str] | None:
    """What is wrong with an answer, and in which words; None if nothing is."""
    if answer.is_stuck:
        return "stuck", answer.error or "nothing came"
    if answer.error is not None:
        return ("repeated" if "came twice" in answer.error else "lost"), answer.error
    for want, got in zip(expected.samples, answer.samples, strict=True):
        if answer.request.cancel_after is not None:
            want = _cut(want, got)
        fault = _sample_fault(want, got)
        if fault is not None:
            return fault
    if answer.request.cancel_after is None:
        wrong = _rows_differ(expected.prompt_logprobs or [], answer.prompt_logprobs or [])
        if wrong:
            return "changed", f"prompt log-probabilities: {wrong}"
    return None


def _cut(want: SampleAnswer, got: SampleAnswer) -> SampleAnswer:
    """As much of what was expected as a client that has left can have seen."""
    return SampleAnswer(
        text=want.text[: len(got.text)],
        token_ids=want.token_ids[: len(got.token_ids)],
        logprobs=want.logprobs[: len(got.logprobs)],
        finish_reason=got.finish_reason,
        stop_reason=got.stop_reason,
    )


def _sample_fault(want: SampleAnswer, got: SampleAnswer) -> tuple[Fault, str] | None:
    if got.token_ids != want.token_ids:
        return _tokens_fault(want.token_ids, got.token_ids)
    if got.text != want.text:
        kind: Fault = "repeated" if len(got.text) > len(want.text) else "lost"
        return kind, f"the text of the same tokens is {got.text!r}, expected {want.text!r}"
    ends = (want.finish_reason, want.stop_reason), (got.finish_reason, got.stop_reason)
    if ends[0] != ends[1]:
        return "changed", f"it ended with {ends[1]}, expected {ends[0]}"
    wrong = _rows_differ(want.logprobs, got.logprobs)
    return ("changed", f"log-probabilities: {wrong}") if wrong else None


def _tokens_fault(want: list[int], got: list[int]) -> tuple[Fault, str]:
    same = next(
        (place for place, pair in enumerate(zip(want, got, strict=False)) if pair[0] != pair[1]),
        min(len(want), len(got)),
    )
    rest = got[same:]
    words = f"from token {same} on it has {rest[:8]}, expected {want[same:][:8]}"
    if rest and len(rest) > len(want) - same and rest == got[same - len(rest) : same]:
        return "repeated", words
    return ("lost" if not rest else "changed"), words


def _rows_differ(
    want: list[dict[int, Logprob] | None] | list[dict[int, Logprob]],
    got: list[dict[int, Logprob] | None] | list[dict[int, Logprob]],
) -> str:
    """What differs between rows of log-probabilities; of near ties any order will do."""
    if len(want) != len(got):
        return f"{len(got)} rows, expected {len(want)}"
    for place, (one, other) in enumerate(zip(want, got, strict=True)):
        if (one is None) != (other is None):
            return f"row {place} is {other}, expected {one}"
        values = sorted(entry.logprob for entry in (one or {}).values())
        others = sorted(entry.logprob for entry in (other or {}).values())
        if len(values) != len(others) or any(
            abs(a - b) > LOGPROB_TOLERANCE for a, b in zip(values, others, strict=True)
        ):
            return f"row {place} is {others}, expected {values}"
    return ""
