"""What the text edge counts of requests, against a clock that the test moves."""

import pytest
from edge_rig import EdgeRig

from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.control import HistogramCounts
from pillion.messages.ids import FINISH_LENGTH, FINISH_NONE
from pillion.messages.requests import NewRequest, RequestClosed, RequestScheduled
from pillion.messages.sampling import SamplingParams
from pillion.messages.steps import StepTimes
from pillion.messages.text import CancelRequest, GenerateRequest

MS = 1_000_000


@pytest.fixture
def rig(text_model: TextModel) -> EdgeRig:
    rig = EdgeRig(text_model)
    rig.connect()
    return rig


def seen(rig: EdgeRig, name: str) -> tuple[int, float]:
    """How many observations, and their sum."""
    counts: HistogramCounts = rig.edge.histograms[name].counts()
    return sum(counts.counts), pytest.approx(counts.total)


def reasons(rig: EdgeRig) -> dict[str, int]:
    return {name: count for name, count in rig.edge.tallies["finish_reasons"].items() if count}


def schedule(
    rig: EdgeRig, admitted: NewRequest, planned_ns: int, cached: int = 0, index: int = 0
) -> None:
    message = RequestScheduled(
        epoch=1,
        sequence_id=admitted.request_id + index,
        num_cached_tokens=cached,
        miss_reason="cold",
        planned_ns=planned_ns,
    )
    rig.ring(message)


def one_token(
    rig: EdgeRig, admitted: NewRequest, place: int, code: int = FINISH_NONE, index: int = 0
) -> None:
    position = len(admitted.prompt_token_ids) // 4 + place
    times = StepTimes(
        prepare_ns=1,
        execute_ns=2,
        output_ns=3,
        num_prefill_tokens=0,
        num_decode_tokens=1,
        answered_ns=rig.now_ns - MS,
    )
    rig.step((admitted.request_id + index, position, [97], code), times=times)


def test_where_the_time_of_a_request_goes(rig: EdgeRig) -> None:
    rig.hold_jobs = True
    messages = [{"role": "user", "content": "x"}]
    rig.send(1, GenerateRequest(client_request_id="r", messages=messages))
    rig.now_ns += 5 * MS
    rig.run_jobs()
    (admitted,) = rig.take_ring(NewRequest)
    rig.now_ns += 10 * MS
    schedule(rig, admitted, rig.now_ns - 4 * MS, cached=8)
    rig.now_ns += 20 * MS
    one_token(rig, admitted, 0)
    for place, code in ((1, FINISH_NONE), (2, FINISH_LENGTH)):
        rig.now_ns += 30 * MS
        one_token(rig, admitted, place, code)
    assert seen(rig, "ring_admit_seconds") == (1, 0.005)
    assert seen(rig, "ring_plan_seconds") == (1, 0.006)
    assert seen(rig, "ring_first_output_seconds") == (1, 0.024)
    assert seen(rig, "ring_output_seconds") == (3, 0.003)
    assert seen(rig, "first_token_seconds") == (1, 0.035)
    assert seen(rig, "inter_token_seconds") == (2, 0.06)
    assert seen(rig, "whole_seconds") == (1, 0.095)
    assert seen(rig, "queue_seconds") == (1, 0.006)
    assert seen(rig, "prefill_seconds") == (1, 0.024)
    assert seen(rig, "decode_seconds") == (1, 0.06)
    assert seen(rig, "inference_seconds") == (1, 0.084)
    assert seen(rig, "per_token_seconds") == (1, 0.03)
    num_prompt = len(admitted.prompt_token_ids) // 4
    assert seen(rig, "request_prompt_tokens") == (1, num_prompt)
    assert seen(rig, "request_computed_tokens") == (1, num_prompt - 8)
    assert seen(rig, "request_output_tokens") == (1, 3)
    assert seen(rig, "step_tokens") == (3, 3)
    assert reasons(rig) == {"length": 1}
    assert rig.edge.tallies["cache_miss_reasons"]["cold"] == 1


def test_samples_end_for_reasons_of_their_own(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(n=3, max_tokens=8))
    rig.run(admitted, [97, 98], index=0)
    rig.ring(RequestClosed(epoch=1, sequence_id=admitted.request_id + 1, finish_reason="timeout"))
    rig.send(1, CancelRequest(client_request_id="r"))
    assert reasons(rig) == {"length": 1, "timeout": 1, "abort": 1}
    assert seen(rig, "request_samples") == (1, 3)
    assert seen(rig, "request_max_tokens") == (3, 24)
    assert seen(rig, "request_output_tokens") == (3, 2)
    assert seen(rig, "request_longest_output_tokens") == (1, 2)
    assert seen(rig, "whole_seconds")[0] == 1, "one came to an end by itself"


def test_each_sample_has_times_of_its_own(rig: EdgeRig) -> None:
    admitted = rig.generate("x" * 16, sampling_params=SamplingParams(n=2, max_tokens=8))
    num_prompt = len(admitted.prompt_token_ids) // 4
    schedule(rig, admitted, rig.now_ns + 2 * MS)
    rig.now_ns += 10 * MS
    one_token(rig, admitted, 0)
    schedule(rig, admitted, rig.now_ns, cached=num_prompt - 1, index=1)
    rig.now_ns += 10 * MS
    one_token(rig, admitted, 1, FINISH_LENGTH)
    one_token(rig, admitted, 0, index=1)
    rig.now_ns += 30 * MS
    one_token(rig, admitted, 1, FINISH_LENGTH, index=1)
    assert seen(rig, "first_token_seconds") == (2, 0.01 + 0.02)
    assert seen(rig, "whole_seconds") == (2, 0.02 + 0.05)
    assert seen(rig, "queue_seconds") == (2, 0.002 + 0.01)
    assert seen(rig, "prefill_seconds") == (2, 0.008 + 0.01)
    assert seen(rig, "decode_seconds") == (2, 0.01 + 0.03)
    assert seen(rig, "inference_seconds") == (2, 0.018 + 0.04)
    assert seen(rig, "per_token_seconds") == (2, 0.01 + 0.03)
    assert seen(rig, "request_prompt_tokens") == (2, 2 * num_prompt)
    assert seen(rig, "request_computed_tokens") == (2, num_prompt + 1)
    assert seen(rig, "request_longest_output_tokens") == (1, 2)
    assert seen(rig, "ring_first_output_seconds") == (1, 0.008)


def test_whoever_leaves_or_is_refused(rig: EdgeRig) -> None:
    rig.generate()
    rig.edge.close_session(1)
    assert reasons(rig) == {"abort": 1}
    rig.connect(2)
    rig.refused(session_id=2, prompt="x" * 1000)
    assert reasons(rig) == {"abort": 1}, "it never was a request of the engine"
    assert seen(rig, "request_prompt_tokens")[0] == 1


def test_tokens_that_come_together_are_one_output(rig: EdgeRig) -> None:
    first, second = rig.generate("a"), rig.generate("b")
    rows = [(each.request_id, len(each.prompt_token_ids) // 4, [97], 0) for each in (first, second)]
    rig.step(*rows)
    rig.now_ns += 7 * MS
    rig.step(*((sequence, position + 1, [97], 0) for sequence, position, _, _ in rows))
    assert seen(rig, "inter_token_seconds") == (2, 0.014)
