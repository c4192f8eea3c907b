"""A second text edge continues what a first one began, exactly behind what the client has."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from edge_rig import VOCAB_SIZE, EdgeRig, geometry, joined, prompt_logprobs, sampled_logprobs

from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.ids import FINISH_LENGTH, FINISH_STOP
from pillion.messages.requests import AbortRequest, NewRequest, RequestClosed, RequestScheduled
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    CancelRequest,
    GenerateChunk,
    GenerateRequest,
    ReceivedSample,
    RequestFailed,
    Resume,
)
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.resumable import Resumable

NewEdge = Callable[[], EdgeRig]


@pytest.fixture
def new_edge(text_model: TextModel) -> NewEdge:
    """Text edges, each the next life of the one before, with the same client."""
    epochs = iter(range(1, 100))

    def make() -> EdgeRig:
        rig = EdgeRig(text_model, epoch=next(epochs))
        rig.connect()
        return rig

    return make


class Client:
    """What one client has of one request, over any number of text edges."""

    def __init__(self, **fields: Any) -> None:
        if "prompt_token_ids" not in fields:
            fields["prompt"] = "hello world"
        request = GenerateRequest(client_request_id="r", **fields)
        self.resumable = Resumable(request, 0)
        self.chunks: list[GenerateChunk] = []

    def begin(self, rig: EdgeRig) -> NewRequest:
        rig.send(1, self.resumable.request)
        (admitted,) = rig.take_ring(NewRequest)
        return admitted

    def resume(self, rig: EdgeRig) -> NewRequest:
        rig.send(1, self.resumable.again(ConnectionLost("lost"), rig.now_ns))
        (admitted,) = rig.take_ring(NewRequest)
        return admitted

    def receive(self, rig: EdgeRig) -> None:
        for chunk in rig.take():
            assert isinstance(chunk, GenerateChunk), chunk
            self.chunks.append(chunk)
            self.resumable.note(chunk)


def run(
    rig: EdgeRig, admitted: NewRequest, ids: list[int], start: int, end: int, finish: int
) -> None:
    """The engine makes tokens `start .. end - 1` of these; the last of all ends the sample."""
    prompt = len(admitted.prompt_token_ids) // 4
    for place in range(start, end):
        code = finish if place == len(ids) - 1 else 0
        rig.step((admitted.request_id, prompt + place, [ids[place]], code))


TEXTS: list[tuple[str, dict[str, Any]]] = [
    ("naïve 🙂🙂 好 wörld", {}),
    ("one STOP two", {"stop": ["STOP", "zz"]}),
    ("one STO two STOX", {"stop": ["STOP", "TOX."]}),
    ("🙂 end. of it", {"stop": ["end"], "include_stop_str_in_output": True, "min_tokens": 3}),
    ("kept to itself", {"detokenize": False}),
]


@pytest.mark.parametrize(("text", "params"), TEXTS)
@pytest.mark.parametrize("finish", [FINISH_LENGTH, FINISH_STOP])
def test_text_goes_on_from_every_token(
    new_edge: NewEdge, text: str, params: dict[str, Any], finish: int
) -> None:
    ids = list(text.encode())  # a token for each byte: most cuts are inside a character
    if finish == FINISH_STOP:
        ids.append(300)
    sampling = SamplingParams(max_tokens=50, seed=3, **params)
    whole = Client(sampling_params=sampling)
    rig = new_edge()
    run(rig, whole.begin(rig), ids, 0, len(ids), finish)
    whole.receive(rig)
    expected = joined(whole.chunks)
    for cut in range(len(expected[1])):
        client = Client(sampling_params=sampling)
        first, second = new_edge(), new_edge()
        run(first, client.begin(first), ids, 0, cut, finish)
        client.receive(first)
        again = client.resume(second)
        assert [unpack_ids(part) for part in again.produced_token_ids] == [ids[:cut]] * bool(cut)
        run(second, again, ids, cut, len(ids), finish)
        client.receive(second)
        text_, tokens, last = joined(client.chunks)
        assert (text_, tokens) == expected[:2]
        assert (last.finish_reason, last.stop_reason) == (
            expected[2].finish_reason,
            expected[2].stop_reason,
        )
        assert last.usage == expected[2].usage
        assert second.take_ring(AbortRequest) == [] or last.finish_reason == "stop"


def test_samples_that_are_over_stay_over(new_edge: NewEdge) -> None:
    client = Client(sampling_params=SamplingParams(n=3, max_tokens=20, seed=1))
    first = new_edge()
    admitted = client.begin(first)
    first.run(admitted, list(b"done"), index=1)
    first.step((admitted.request_id, len(admitted.prompt_token_ids) // 4, [97], 0))
    client.receive(first)
    second = new_edge()
    again = client.resume(second)
    assert again.seeds == admitted.seeds
    assert again.finished == [1]
    assert [bytes(unpack_ids(part)) for part in again.produced_token_ids] == [b"a", b"done", b""]
    assert again.request_id != admitted.request_id
    start = len(again.prompt_token_ids) // 4
    second.step((again.request_id, start + 1, [98], FINISH_LENGTH))
    second.run(again, list(b"xyz"), index=2)
    client.receive(second)
    assert [joined(client.chunks, index)[0] for index in range(3)] == ["ab", "done", "xyz"]
    usage = client.chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 9
    assert second.edge.gauges["open_requests"] == 0


def test_log_probabilities_are_complete(new_edge: NewEdge) -> None:
    client = Client(
        prompt_token_ids=[5, 6, 7],
        sampling_params=SamplingParams(logprobs=1, prompt_logprobs=1, max_tokens=9, seed=1),
        return_prompt_token_ids=True,
    )
    rigs = [new_edge(), new_edge(), new_edge()]
    # The first edge dies before the prompt is complete, the second one behind the first token.
    admitted = client.begin(rigs[0])
    rigs[0].ring(
        rigs[0].step_output(prompt_logprobs=[prompt_logprobs(admitted.request_id, 1, [[6, 9]])])
    )
    client.receive(rigs[0])
    assert client.chunks == []
    for place, rig in enumerate(rigs[1:]):
        again = client.resume(rig)
        assert (again.sampling.prompt_logprobs is None) == (place == 1)
        fields: dict[str, Any] = {}
        if place == 0:
            parts = prompt_logprobs(again.request_id, 1, [[6, 9], [7, 9]])
            fields["prompt_logprobs"] = [parts]
        row = (again.request_id, 3 + place, [97 + place], FINISH_LENGTH if place else 0)
        rig.ring(
            rig.step_output(
                row, logprobs=sampled_logprobs([(0, [97 + place, 1], [-0.5, -1.0], 1)]), **fields
            )
        )
        client.receive(rig)
    assert [chunk.prompt_logprobs is not None for chunk in client.chunks] == [True, False]
    assert [chunk.prompt_token_ids is not None for chunk in client.chunks] == [True, False]
    assert [len(chunk.logprobs.ranks) // 4 for chunk in client.chunks if chunk.logprobs] == [1, 1]
    assert joined(client.chunks)[0] == "ab"


def test_what_the_cache_had_is_told_once(new_edge: NewEdge) -> None:
    client = Client(sampling_params=SamplingParams(max_tokens=9, seed=1))
    for place, rig in enumerate((new_edge(), new_edge())):
        admitted = client.resume(rig) if place else client.begin(rig)
        rig.ring(
            RequestScheduled(
                epoch=1,
                sequence_id=admitted.request_id,
                num_cached_tokens=4 + place,
                miss_reason="cold",
            )
        )
        start = len(admitted.prompt_token_ids) // 4 + place
        rig.step((admitted.request_id, start, [97], FINISH_LENGTH if place else 0))
        client.receive(rig)
    usage = client.chunks[-1].usage
    assert usage is not None
    assert (usage.cached_tokens, usage.cache_miss_reason) == (4, "cold")


def test_time_goes_on(new_edge: NewEdge) -> None:
    client = Client(deadline_ms=100, sampling_params=SamplingParams(seed=1))
    first, second = new_edge(), new_edge()
    first.now_ns = second.now_ns = 0
    assert client.begin(first).deadline_ns == 100_000_000
    second.now_ns = 60_000_000
    again = client.resume(second)
    assert (again.arrival_time_ns, again.deadline_ns) == (0, 100_000_000)


def test_a_request_of_the_last_token_is_ended_by_the_scheduler(new_edge: NewEdge) -> None:
    rig = new_edge()
    received = ReceivedSample(token_ids=pack_ids(list(b"ab")), num_chars=2)
    admitted = rig.generate(
        sampling_params=SamplingParams(max_tokens=2, seed=1), resume=Resume(samples=[received])
    )
    assert admitted.sampling.max_tokens == 2
    rig.ring(RequestClosed(epoch=1, sequence_id=admitted.request_id, finish_reason="length"))
    (last,) = rig.take()
    assert (last.text, last.offset, last.finish_reason) == ("", 2, "length")


def test_a_cancel_before_the_model_is_loaded(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, ready=False, epoch=2)
    rig.connect()
    resume = Resume(samples=[ReceivedSample(token_ids=pack_ids(list(b"ab")), num_chars=2)])
    params = SamplingParams(seed=1)
    rig.send(
        1,
        GenerateRequest(client_request_id="r", prompt="x", sampling_params=params, resume=resume),
    )
    rig.send(1, CancelRequest(client_request_id="r"))
    (last,) = rig.take()
    assert (last.offset, last.finish_reason, last.token_ids) == (2, "abort", b"")


def test_a_request_that_was_let_in_once_is_let_in_again(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, epoch=2, max_queued_requests=0)
    rig.connect()
    for number in range(4):  # as many as run at once
        rig.generate(str(number))
    assert rig.refused(prompt="x").code == "overloaded"
    for number in range(4, 8):
        rig.generate(str(number), resume=Resume(samples=[ReceivedSample()]))
    failure = rig.refused(prompt="x", resume={"samples": [{}]})
    assert failure.code == "overloaded"


def of(**fields: Any) -> dict[str, Any]:
    return {"token_ids": pack_ids(list(b"abc")), "num_chars": 3, **fields}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"samples": []}, "each of the 1 samples"),
    ({"samples": [of(), of()]}, "each of the 1 samples"),
    ({"samples": [of(finish_reason="stop")]}, "nothing is left"),
    ({"samples": [of(token_ids=b"abc")]}, "packed int32"),
    ({"samples": [of(num_chars=-1)]}, "negative"),
    ({"samples": [of(num_chars=4)]}, "have 3 characters"),
    ({"samples": [of(num_chars=2**63)]}, "resume"),
    ({"samples": [of(token_ids=pack_ids([VOCAB_SIZE]))]}, str(VOCAB_SIZE - 1)),
    ({"samples": [of(token_ids=pack_ids([-1]))]}, "resume"),
    ({"samples": [of(token_ids=pack_ids([97] * 64))]}, "max_model_len"),
    ({"samples": [of(token_ids=pack_ids([97] * 21), num_chars=21)]}, "max_tokens"),
    ({"samples": [of(token_ids=pack_ids(list(b"aSTOPb")))]}, "stop string"),
    ({"samples": [of(finish_reason="bored")]}, "resume"),
    ({"samples": [of()], "elapsed_ms": -1}, "elapsed_ms"),
    ({"samples": [of()], "elapsed_ms": 2**50}, "elapsed_ms"),
    ({"samples": [of()], "num_cached_tokens": -1}, "num_cached_tokens"),
    ({"samples": [of()], "cache_miss_reason": "x" * 100}, "cache_miss_reason"),
    ({"samples": 3}, "resume"),
]


@pytest.mark.parametrize(("resume", "said"), REFUSED)
def test_what_cannot_be_resumed_is_refused(
    new_edge: NewEdge, resume: dict[str, Any], said: str
) -> None:
    rig = new_edge()
    params = {"stop": ["STOP"], "max_tokens": 20, "seed": 1}
    failure = rig.refused(prompt="x", sampling_params=params, resume=resume)
    assert (failure.code, failure.param) == ("invalid_request", "resume")
    assert said in failure.message
    assert rig.edge.gauges["open_requests"] == 0


def test_without_a_seed_nothing_that_was_sampled_goes_on(new_edge: NewEdge) -> None:
    rig = new_edge()
    failure = rig.refused(prompt="x", resume={"samples": [of()]})
    assert failure.param == "seed"
    rig.generate(resume=Resume(samples=[ReceivedSample()]))


@pytest.mark.parametrize("seed", range(20))
def test_any_number_of_lives(new_edge: NewEdge, seed: int) -> None:
    """Several samples, random steps, edges that die at random; slow readers get merged chunks."""
    chance = random.Random(seed)
    pieces = ["the", " world", "é", "好", "🙂", "ab", "STO", "STOP", " ", "hello"]
    n = chance.choice([1, 3])
    params = SamplingParams(n=n, max_tokens=60, seed=seed, stop=chance.choice([None, ["STOP"]]))
    answers = [
        list("".join(chance.choices(pieces, k=6)).encode())[: chance.randrange(1, 40)]
        for _ in range(n)
    ]
    whole, client = Client(sampling_params=params), Client(sampling_params=params)
    rig = new_edge()
    admitted = whole.begin(rig)
    for index in range(n):
        rig.run(admitted, answers[index], FINISH_LENGTH, index)
    whole.receive(rig)

    rig = new_edge()
    admitted = client.begin(rig)
    places = [0] * n
    start = len(admitted.prompt_token_ids) // 4
    while any(place < len(ids) for place, ids in zip(places, answers, strict=True)):
        if chance.random() < 0.1:
            rig = new_edge()
            admitted = client.resume(rig)
            places = [
                len(answers[index]) if index in admitted.finished else len(produced) // 4
                for index, produced in enumerate(admitted.produced_token_ids or [b""] * n)
            ]
        index = chance.randrange(n)
        if places[index] < len(answers[index]):
            ids, place = answers[index], places[index]
            code = FINISH_LENGTH if place == len(ids) - 1 else 0
            rig.step((admitted.request_id + index, start + place, [ids[place]], code))
            places[index] += 1
        if chance.random() < 0.1:
            rig.edge.on_slow(1, rig.now_ns)
        if chance.random() < 0.2:
            rig.edge.on_caught_up(1)
            rig.turn()
        client.receive(rig)
        if all(
            any(c.index == index and c.finish_reason for c in client.chunks) for index in range(n)
        ):
            break
    rig.edge.on_caught_up(1)
    rig.turn()
    client.receive(rig)
    for index in range(n):
        assert joined(client.chunks, index)[:2] == joined(whole.chunks, index)[:2]
    usages = [chunk.usage for chunk in client.chunks if chunk.usage is not None]
    assert usages == [chunk.usage for chunk in whole.chunks if chunk.usage is not None]


def test_the_geometry_says_how_long_an_answer_may_be(text_model: TextModel) -> None:
    """Checked when it is known: a request may come before the engine is ready."""
    rig = EdgeRig(text_model, ready=False)
    rig.connect()
    resume = Resume(samples=[ReceivedSample(token_ids=pack_ids([97] * 64), num_chars=1)])
    request = GenerateRequest(
        client_request_id="r", prompt="x", sampling_params=SamplingParams(seed=1), resume=resume
    )
    rig.send(1, request)
    assert rig.take() == []
    rig.edge.on_model(text_model)
    rig.ring(geometry(VOCAB_SIZE))
    (failure,) = rig.take()
    assert isinstance(failure, RequestFailed)
    assert "max_model_len" in failure.message
