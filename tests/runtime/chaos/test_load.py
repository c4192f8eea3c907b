"""The requests of a chaos run come from its seed alone."""

from collections import Counter

from pillion.runtime.chaos.load import distinct_requests, in_random_order


def test_the_same_seed_gives_the_same_requests() -> None:
    assert distinct_requests(1, 50, 18) == distinct_requests(1, 50, 18)
    assert distinct_requests(1, 50, 18) != distinct_requests(2, 50, 18)
    distinct = distinct_requests(1, 10, 18)
    order = in_random_order(1, distinct, 35)
    assert order == in_random_order(1, distinct, 35)
    assert order != in_random_order(2, distinct, 35)
    assert set(Counter(request.index for request in order).values()) == {3, 4}


def test_every_kind_is_there_and_repeatable() -> None:
    requests = distinct_requests(3, 90, 18)
    assert set(Counter(request.kind for request in requests).values()) == {10}
    for request in requests:
        request.params.verify()
        assert (request.prompt is None) != (request.messages is None)
        assert request.params.temperature == 0.0 or request.params.seed is not None
    assert any(request.params.n > 1 for request in requests)
    assert any(request.params.stop for request in requests)
    assert any(request.params.prompt_logprobs is not None for request in requests)
    assert any(request.cancel_after == 0 for request in requests)
    assert any(not request.stream for request in requests)
    assert all(request.stream for request in requests if request.cancel_after is not None)
    assert any(request.cache_salt for request in requests)
