"""Many requests as one: order, window and retries, without a daemon."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillion.messages.codec import pack_ids
from pillion.messages.text import GenerateChunk, GenerateRequest, RequestFailed
from pillion.runtime.client_requests import GUARD_S
from pillion.runtime.clock import NS_PER_MS, NS_PER_S
from pillion.runtime.errors import InvalidRequest, RequestError
from pillion.runtime.request_batch import RequestBatch


def requests(count: int, deadline_ms: int | None = None) -> list[GenerateRequest]:
    return [
        GenerateRequest(client_request_id=f"r{index}", prompt="p", deadline_ms=deadline_ms)
        for index in range(count)
    ]


def answer(request_id: str) -> GenerateChunk:
    return GenerateChunk(
        client_request_id=request_id,
        index=0,
        text=request_id,
        token_ids=pack_ids([1]),
        finish_reason="stop",
    )


def full(request_id: str, retry_after_ms: int | None = 7) -> RequestFailed:
    return RequestFailed(
        client_request_id=request_id,
        code="overloaded",
        message="full",
        retry_after_ms=retry_after_ms,
    )


@given(
    count=st.integers(0, 40), window=st.integers(1, 10), room=st.integers(1, 5), seed=st.integers()
)
def test_every_request_is_answered_once_and_in_order(
    count: int, window: int, room: int, seed: int
) -> None:
    """A daemon with room for few requests answers in any order and refuses the others."""
    chance = random.Random(seed)
    batch = RequestBatch(requests(count), 0, window)
    now, inside, refused, finished = 0, [], [], []
    while not batch.finished:
        while (request := batch.next_request(now)) is not None:
            (inside if len(inside) < room else refused).append(request.client_request_id)
            assert len(inside) + len(refused) <= window
        if refused and chance.random() < 0.5:
            batch.on_reply(full(refused.pop(), chance.choice([None, 7])), now)
        elif inside:
            request_id = inside.pop(chance.randrange(len(inside)))
            output = batch.on_reply(answer(request_id), now)
            assert output is not None
            finished.append(output.request_id)
        else:
            wake = batch.wake_at_ns()
            if wake is None:
                batch.on_reply(full(refused.pop()), now)
            else:
                now = max(now, wake)
    assert sorted(finished) == sorted(f"r{index}" for index in range(count))
    assert [output.request_id for output in batch.outputs] == [f"r{i}" for i in range(count)]


def test_a_refused_request_waits_as_long_as_it_is_told() -> None:
    batch = RequestBatch(requests(2), 0, window=2)
    assert batch.next_request(0) is not None
    assert batch.next_request(0) is not None
    assert batch.wake_at_ns() is None
    batch.on_reply(full("r1"), 100)
    # One is in flight and one is all that there was room for.
    assert batch.next_request(100 + 7 * NS_PER_MS) is None
    batch.on_reply(answer("r0"), 200)
    assert batch.wake_at_ns() == 100 + 7 * NS_PER_MS
    assert batch.next_request(100 + 7 * NS_PER_MS - 1) is None
    again = batch.next_request(100 + 7 * NS_PER_MS)
    assert again is not None
    assert again.client_request_id == "r1"


def test_the_deadline_is_that_of_the_whole_batch() -> None:
    batch = RequestBatch(requests(3, deadline_ms=100), 0, window=1)
    first = batch.next_request(0)
    assert first is not None
    assert first.deadline_ms == 100
    batch.on_reply(answer("r0"), 0)
    second = batch.next_request(60 * NS_PER_MS)
    assert second is not None
    assert second.deadline_ms == 40
    batch.on_reply(answer("r1"), 0)
    guard = 100 * NS_PER_MS + int(GUARD_S * NS_PER_S)
    late = batch.next_request(guard)
    assert late is not None
    assert late.deadline_ms == 1
    assert batch.wake_at_ns() == guard
    with pytest.raises(RequestError, match="did not end the request"):
        batch.next_request(guard + 1)


def test_a_refusal_names_the_index() -> None:
    batch = RequestBatch(requests(2), 0)
    batch.next_request(0)
    batch.next_request(0)
    failure = RequestFailed(client_request_id="r1", code="invalid_request", message="no", param="x")
    with pytest.raises(InvalidRequest, match="prompt 1: no") as caught:
        batch.on_reply(failure, 0)
    assert caught.value.param == "x"


def test_replies_to_others_are_ignored() -> None:
    batch = RequestBatch(requests(1), 0)
    assert batch.on_reply(answer("r0"), 0) is None
    batch.next_request(0)
    assert batch.on_reply(answer("stranger"), 0) is None
    assert not batch.finished
