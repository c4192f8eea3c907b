"""Every way in which an answer can be wrong is seen."""

from dataclasses import replace
from typing import Any

import pytest

from pillion.messages.sampling import SamplingParams
from pillion.runtime.chaos.answers import Answer, SampleAnswer, find_fault
from pillion.runtime.chaos.load import ChaosRequest
from pillion.runtime.chaos.report import compare
from pillion.runtime.outputs import CompletionOutput, Logprob, RequestOutput

REQUEST = ChaosRequest(0, "greedy", SamplingParams(logprobs=1), prompt="p")
ROWS = [{5: Logprob(-0.5, 1, "a")}, {6: Logprob(-0.25, 1, "b")}, {7: Logprob(-1.0, 1, "c")}]


def sample(**fields: Any) -> SampleAnswer:
    whole: dict[str, Any] = {
        "text": "abc",
        "token_ids": [5, 6, 7],
        "logprobs": list(ROWS),
        "finish_reason": "stop",
        "stop_reason": "d",
    }
    return SampleAnswer(**{**whole, **fields})


def answer(*samples: SampleAnswer, request: ChaosRequest = REQUEST, **fields: Any) -> Answer:
    return Answer(request, list(samples) or [sample()], **fields)


def test_the_same_answer_is_right() -> None:
    assert find_fault(answer(), answer()) is None
    rounded = [{5: Logprob(-0.5001, 1, "a")}, *ROWS[1:]]
    assert find_fault(answer(), answer(sample(logprobs=rounded))) is None


@pytest.mark.parametrize(
    ("got", "fault"),
    [
        (answer(error="DaemonUnavailable: gone"), "lost"),
        (answer(error="RequestError: tokens of sample 0 came twice"), "repeated"),
        (answer(error="nothing came", is_stuck=True), "stuck"),
        (answer(sample(token_ids=[5, 6])), "lost"),
        (answer(sample(token_ids=[5, 6, 8])), "changed"),
        (answer(sample(token_ids=[5, 6, 7, 8])), "changed"),
        (answer(sample(token_ids=[5, 6, 7, 6, 7])), "repeated"),
        (answer(sample(text="ab")), "lost"),
        (answer(sample(text="abbc")), "repeated"),
        (answer(sample(finish_reason="length")), "changed"),
        (answer(sample(finish_reason=None)), "changed"),
        (answer(sample(stop_reason=None)), "changed"),
        (answer(sample(logprobs=ROWS[:2])), "changed"),
        (answer(sample(logprobs=[*ROWS[:2], {7: Logprob(-1.1, 1, "c")}])), "changed"),
        (answer(prompt_logprobs=[None]), "changed"),
    ],
)
def test_what_is_wrong_has_a_name(got: Answer, fault: str) -> None:
    found = find_fault(answer(), got)
    assert found is not None
    assert found[0] == fault, found[1]


def test_every_sample_counts() -> None:
    found = find_fault(answer(sample(), sample()), answer(sample(), sample(token_ids=[1])))
    assert found is not None


def test_a_client_that_has_left_saw_a_beginning() -> None:
    leaving = replace(REQUEST, cancel_after=2)
    begun = sample(
        text="ab", token_ids=[5, 6], logprobs=ROWS[:2], finish_reason=None, stop_reason=None
    )
    assert find_fault(answer(), answer(begun, request=leaving)) is None
    held_back = replace(begun, text="a")
    assert find_fault(answer(), answer(held_back, request=leaving)) is None
    assert find_fault(answer(), answer(replace(begun, text="ac"), request=leaving)) is not None
    assert (
        find_fault(answer(), answer(replace(begun, token_ids=[5, 9]), request=leaving)) is not None
    )


def test_an_answer_is_put_together_from_what_was_given() -> None:
    built = Answer.of(REQUEST)
    for token_id, text, reason in ((5, "a", None), (6, "b", None), (7, "c", "stop")):
        new = CompletionOutput(
            index=0,
            text=text,
            token_ids=[token_id],
            logprobs=[ROWS[token_id - 5]],
            finish_reason=reason,  # type: ignore[arg-type]
            stop_reason="d" if reason else None,
        )
        built.add(RequestOutput("r", outputs=[new]))
    assert find_fault(answer(), built) is None
    faults, num_without_end = compare({0: answer()}, [built, answer(sample(finish_reason=None))])
    assert [(fault.number, fault.fault) for fault in faults] == [(1, "changed")]
    assert num_without_end == 1
