"""Chunks become one answer, whatever the pieces, and what does not fit is an error."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.messages.codec import pack_floats, pack_ids
from pillion.messages.text import GenerateChunk, RequestTimes, TokenLogprobs, ToolCallDelta
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import InvalidRequest, RequestError
from pillion.runtime.outputs import Logprob
from pillion.runtime.request_assembly import RequestAssembly, logprob_dicts


def chunk(offset: int, ids: list[int], text: str = "", **fields: object) -> GenerateChunk:
    return GenerateChunk(
        client_request_id="r",
        index=int(str(fields.pop("index", 0))),
        offset=offset,
        token_ids=pack_ids(ids),
        text=text,
        **fields,  # type: ignore[arg-type]
    )


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=8))
def test_any_cutting_gives_the_same_answer(pieces: list[list[int]]) -> None:
    assembly = RequestAssembly("r", 1, "p")
    offset = 0
    for number, ids in enumerate(pieces):
        last = number == len(pieces) - 1
        text = "".join(map(str, ids))
        new = assembly.add(chunk(offset, ids, text, finish_reason="length" if last else None))
        assert new.outputs[0].token_ids == ids
        assert new.finished == last
        offset += len(ids)
    (sample,) = assembly.output.outputs
    assert sample.token_ids == [token for ids in pieces for token in ids]
    assert sample.text == "".join(str(token) for token in sample.token_ids)
    assert assembly.finished
    assert sample.finish_reason == "length"


def test_times_count_from_when_the_request_was_sent() -> None:
    assembly = RequestAssembly("r", 1, None, now_ns() - 5 * NS_PER_S)
    assembly.add(chunk(0, [1], finish_reason="length"))
    metrics = assembly.output.metrics
    assert metrics is not None
    assert metrics.first_token_s is not None
    assert metrics.first_token_s >= 5
    assert metrics.arrival_time <= time.time() - 5


def test_samples_end_one_by_one() -> None:
    assembly = RequestAssembly("r", 2, None)
    assert not assembly.add(chunk(0, [1], index=1, finish_reason="stop", stop_reason=1)).finished
    assert not assembly.finished
    assert assembly.add(chunk(0, [2], index=0, finish_reason="stop", stop_reason="x")).finished
    assert [sample.stop_reason for sample in assembly.output.outputs] == ["x", 1]
    assert [sample.finished() for sample in assembly.output.outputs] == [True, True]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (chunk(2, [1]), "are missing: the chunk starts at token 2 and 1 tokens were there"),
        (chunk(0, [1]), "came twice"),
        (chunk(1, [1], index=1), "answered sample 1 of 1"),
        (chunk(1, [1], index=-1), "answered sample -1 of 1"),
    ],
)
def test_what_does_not_join(second: GenerateChunk, message: str) -> None:
    assembly = RequestAssembly("r", 1, None)
    assembly.add(chunk(0, [1]))
    with pytest.raises(RequestError, match=message) as caught:
        assembly.add(second)
    assert caught.value.code == "internal"


def test_nothing_comes_after_the_end() -> None:
    assembly = RequestAssembly("r", 2, None)
    assembly.add(chunk(0, [1], finish_reason="stop"))
    with pytest.raises(RequestError, match="sample 0 after its end"):
        assembly.add(chunk(1, [1]))


def test_the_first_sample_that_failed_says_why_when_all_have_ended() -> None:
    assembly = RequestAssembly("r", 2, None)
    why = {"error": "the grammar", "error_code": "invalid_request", "error_param": "tools"}
    assembly.take(chunk(0, [1], index=1, finish_reason="error", **why))
    with pytest.raises(InvalidRequest, match="the grammar") as caught:
        assembly.take(chunk(0, [1], finish_reason="error", error="a NaN"))
    assert caught.value.param == "tools"
    assert assembly.ended


PROMPT_LOGPROBS = TokenLogprobs(
    num_top=2,
    token_ids=pack_ids([-1, -1, -1, 5, 5, 6, 7, 8, -1]),
    logprobs=pack_floats([0, 0, 0, -0.5, -0.5, -1, -3, -0.25, 0]),
    ranks=pack_ids([0, 1, 9]),
    decoded=["", "", "", "five", "five", "six", "seven", "eight", ""],
)


def test_prompt_logprobs() -> None:
    assembly = RequestAssembly("r", 1, None)
    new = assembly.add(chunk(0, [], prompt_logprobs=PROMPT_LOGPROBS))
    assert new.prompt_logprobs == [
        None,
        {5: Logprob(-0.5, 1, "five"), 6: Logprob(-1.0, 2, "six")},
        {7: Logprob(-3.0, 9, "seven"), 8: Logprob(-0.25, 1, "eight")},
    ]
    assert assembly.output.prompt_logprobs == new.prompt_logprobs
    assert list(new.prompt_logprobs[2] or {}) == [7, 8]  # the token itself comes first


def test_logprobs_add_up_over_chunks() -> None:
    def logprobs(ids: list[int]) -> TokenLogprobs:
        return TokenLogprobs(
            num_top=0,
            token_ids=pack_ids(ids),
            logprobs=pack_floats(-0.5 for _ in ids),
            ranks=pack_ids(1 for _ in ids),
            decoded=["" for _ in ids],
        )

    assembly = RequestAssembly("r", 1, None)
    assembly.add(chunk(0, [1, 2], logprobs=logprobs([1, 2])))
    assembly.add(chunk(2, [3], logprobs=logprobs([3])))
    (sample,) = assembly.output.outputs
    assert sample.cumulative_logprob == pytest.approx(-1.5)
    assert [list(entry) for entry in sample.logprobs or []] == [[1], [2], [3]]
    with pytest.raises(RequestError, match="logprobs of other tokens"):
        assembly.add(chunk(3, [4], logprobs=logprobs([4, 5])))


def test_columns_of_different_lengths() -> None:
    broken = TokenLogprobs(
        num_top=1, token_ids=pack_ids([1]), logprobs=b"", ranks=pack_ids([1]), decoded=[]
    )
    with pytest.raises(RequestError, match="differ in length"):
        logprob_dicts(broken)


def test_the_daemon_times_a_request_that_came_at_once() -> None:
    times = RequestTimes(scheduled_ms=1, first_token_ms=2, finished_ms=3, first_step_ms=0.5)
    assembly = RequestAssembly("r", 1, None)
    assembly.add(chunk(0, [1], finish_reason="stop", times=times))
    metrics = assembly.output.metrics
    assert metrics is not None
    assert (metrics.scheduled_s, metrics.first_token_s, metrics.first_step_s) == (
        0.001,
        0.002,
        0.0005,
    )
    assert metrics.finished_s is not None


def test_reasoning_and_calls_are_joined() -> None:
    assembly = RequestAssembly("r", 1, None)
    first = [ToolCallDelta(index=0, id="a", name="f", arguments='{"x"')]
    second = [
        ToolCallDelta(index=0, arguments=": 1}"),
        ToolCallDelta(index=1, id="b", name="g", arguments="{}"),
    ]
    assembly.add(chunk(0, [1], reasoning="Let "))
    assembly.add(chunk(1, [2], reasoning="me.", tool_calls=first))
    new = assembly.add(chunk(2, [3], tool_calls=second, finish_reason="tool_calls"))
    (sample,) = assembly.output.outputs
    assert sample.reasoning == "Let me."
    assert [(call.id, call.name, call.arguments) for call in sample.tool_calls] == [
        ("a", "f", '{"x": 1}'),
        ("b", "g", "{}"),
    ]
    assert [call.arguments for call in new.outputs[0].tool_calls] == [": 1}", "{}"], "what is new"


def test_a_part_of_a_call_that_has_not_begun_is_an_error() -> None:
    assembly = RequestAssembly("r", 1, None)
    with pytest.raises(RequestError, match="call 1 of sample 0, which has not begun"):
        assembly.add(chunk(0, [1], tool_calls=[ToolCallDelta(index=1, arguments="{")]))
