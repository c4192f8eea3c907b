"""What a request is sent again with."""

import pytest

from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateChunk, GenerateRequest
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.errors import DaemonUnavailable
from pillion.runtime.resumable import MAX_LOSSES, SOON_NS, Resumable

MS = 10**6
LOST = ConnectionLost("the edge died")


def chunk(
    index: int = 0, text: str = "", ids: tuple[int, ...] = (), **fields: object
) -> GenerateChunk:
    return GenerateChunk(
        client_request_id="r", index=index, text=text, token_ids=pack_ids(ids), **fields
    )  # type: ignore[arg-type]


def resumable(**fields: object) -> Resumable:
    return Resumable(GenerateRequest(client_request_id="r", prompt="p", **fields), 0)  # type: ignore[arg-type]


def test_what_has_come_is_told() -> None:
    request = resumable(sampling_params=SamplingParams(n=3), deadline_ms=500)
    request.note(chunk(1, "hé", (1, 2), num_cached_tokens=7, cache_miss_reason="short"))
    request.note(chunk(1, "llo", (3,), finish_reason="stop"))
    request.note(chunk(0, "", (4,)))
    again = request.again(LOST, 120 * MS)
    assert again.resume is not None
    first, second, third = again.resume.samples
    assert (unpack_ids(first.token_ids), first.num_chars, first.finish_reason) == ([4], 0, None)
    assert (unpack_ids(second.token_ids), second.num_chars) == ([1, 2, 3], 5)
    assert second.finish_reason == "stop"
    assert third.token_ids == b""
    assert (again.resume.elapsed_ms, again.deadline_ms) == (120, 380)
    assert (again.resume.num_cached_tokens, again.resume.cache_miss_reason) == (7, "short")
    assert again.prompt == "p"


def test_a_deadline_that_has_passed_ends_the_request_there() -> None:
    assert resumable(deadline_ms=5).again(LOST, 50 * MS).deadline_ms == 1


def test_the_seed_is_known_from_the_start() -> None:
    one, other = resumable(), resumable()
    seeds = [each.request.sampling_params.seed for each in (one, other)]  # type: ignore[union-attr]
    assert None not in seeds
    assert seeds[0] != seeds[1]
    assert one.again(LOST, 0).sampling_params == one.request.sampling_params
    own = SamplingParams(seed=5)
    assert resumable(sampling_params=own).request.sampling_params == own


def test_parameters_that_were_checked_are_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = SamplingParams()
    monkeypatch.setattr(SamplingParams, "verify", None)
    assert resumable(sampling_params=params).request.sampling_params != params
    assert params.seed is None


def test_a_request_that_may_be_the_cause_is_not_sent_for_ever() -> None:
    request = resumable()
    for _ in range(MAX_LOSSES):
        request.again(LOST, 0)
    with pytest.raises(DaemonUnavailable, match=r"lost 4 times .*: the edge died"):
        request.again(LOST, 0)
    request = resumable()
    for number in range(100):
        request.again(LOST, number * SOON_NS)
    request = resumable()
    for _ in range(100):
        request.again(LOST, 0)
        request.note(chunk(0, "a", (1,)))
    request = resumable()
    for _ in range(100):
        request.again(ConnectionLost("the daemon is stopping", refused=True), 0)
