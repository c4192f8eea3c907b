"""Clients that do not keep up: bigger deltas, never a wait for the engine, and an end to patience."""

from edge_rig import EdgeRig, floats, joined, prompt_logprobs, sampled_logprobs

from pillion.actors.detokenizer.client_sessions import MAX_BACKLOG_BYTES, STALLED_AFTER_NS
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.codec import unpack_ids
from pillion.messages.control import Drain, Drained, EngineFailed, Shutdown
from pillion.messages.ids import FINISH_LENGTH
from pillion.messages.requests import AbortRequest
from pillion.messages.sampling import SamplingParams


def test_output_for_a_slow_client_is_merged(rig: EdgeRig) -> None:
    rig.connect(2)
    slow = rig.generate("slow", sampling_params=SamplingParams(n=2))
    quick = rig.generate("quick", session_id=2)
    start = len(slow.prompt_token_ids) // 4
    rig.edge.on_slow(1, rig.now_ns)
    for place, byte in enumerate(b"abcdef"):
        rig.step(
            (slow.request_id, start + place, [byte], 0),
            (slow.request_id + 1, start + place, [byte + 1], 0),
            (quick.request_id, start + place, [byte], 0),
        )
    assert rig.take(1) == []
    assert len(rig.take(2)) == 6
    rig.edge.on_caught_up(1)
    rig.turn()
    merged = rig.take(1)
    assert [(chunk.index, chunk.text) for chunk in merged] == [(0, "abcdef"), (1, "bcdefg")]
    rig.step((slow.request_id, start + 6, list(b"g"), FINISH_LENGTH))
    (chunk,) = rig.take(1)
    assert (chunk.text, chunk.offset) == ("g", 6)
    rig.edge.close_session(2)


def test_an_end_waits_with_the_rest_and_frees_its_place(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, max_queued_requests=0)
    rig.connect()
    admitted = [rig.generate(str(number)) for number in range(4)]
    rig.edge.on_slow(1, rig.now_ns)
    for each in admitted:
        rig.run(each, list(b"xy"))
    assert rig.take() == []
    rig.generate("next")
    assert rig.refused(client_request_id="0", prompt="x").param == "client_request_id"
    rig.edge.on_caught_up(1)
    rig.turn()
    assert [chunk.text for chunk in rig.take()] == ["xy"] * 4


def test_a_client_that_stops_reading_is_given_up(rig: EdgeRig) -> None:
    rig.connect(2)
    admitted = rig.generate("r", session_id=2)
    rig.edge.on_slow(2, rig.now_ns)
    rig.turn()
    assert rig.next_tick_ns == rig.now_ns + STALLED_AFTER_NS
    rig.now_ns += STALLED_AFTER_NS - 1
    rig.turn()
    assert rig.hung_up == []
    rig.now_ns += 1
    rig.turn()
    assert rig.hung_up == [2]
    (abort,) = rig.take_ring(AbortRequest)
    assert abort.sequence_ids == [admitted.request_id]
    assert rig.next_tick_ns is None


def test_a_backlog_has_a_bound(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, max_model_len=2_000_000)
    rig.connect()
    admitted = rig.generate(sampling_params=SamplingParams(max_tokens=None))
    start = len(admitted.prompt_token_ids) // 4
    rig.edge.on_slow(1, rig.now_ns)
    rig.step((admitted.request_id, start, [97] * 100_000, 0))
    assert rig.hung_up == []
    count = MAX_BACKLOG_BYTES // 64
    rig.step((admitted.request_id, start + 100_000, [97] * count, 0))
    assert rig.hung_up == [1]


def test_a_failing_engine_is_told_behind_what_waits(rig: EdgeRig) -> None:
    admitted = rig.generate()
    rig.edge.on_slow(1, rig.now_ns)
    rig.step((admitted.request_id, len(admitted.prompt_token_ids) // 4, list(b"ab"), 0))
    rig.ring(EngineFailed(message="gone"))
    chunk, failure = rig.take()
    assert chunk.text == "ab"
    assert failure.message == "gone"


def test_a_drain_waits_until_a_slow_client_has_its_end(rig: EdgeRig) -> None:
    admitted = rig.generate()
    rig.edge.on_slow(1, rig.now_ns)
    rig.ring(Drain(deadline_ns=rig.now_ns + 1000))
    rig.run(admitted, list(b"ab"))
    assert not rig.take_ring(Drained)
    assert rig.next_tick_ns == rig.now_ns + 1000
    rig.edge.on_caught_up(1)
    rig.turn()
    assert [chunk.text for chunk in rig.take()] == ["ab"]
    rig.edge.on_slow(1, rig.now_ns)  # it does not take that at once either
    rig.turn()
    assert not rig.take_ring(Drained)
    rig.edge.on_caught_up(1)
    rig.turn()
    assert len(rig.take_ring(Drained)) == 1


def test_a_daemon_that_ends_keeps_nothing_from_a_slow_client(rig: EdgeRig) -> None:
    admitted = rig.generate()
    rig.edge.on_slow(1, rig.now_ns)
    rig.run(admitted, list(b"ab"))
    assert rig.take() == []
    rig.ring(Shutdown())
    assert [(chunk.text, chunk.finish_reason) for chunk in rig.take()] == [("ab", "length")]


def test_logprobs_go_with_their_tokens(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(logprobs=1, max_tokens=3))
    plain = rig.generate("plain")
    start = len(admitted.prompt_token_ids) // 4
    rig.edge.on_slow(1, rig.now_ns)
    for place, byte in enumerate(b"ab"):
        rows = [(1, [byte, 0xE5, 120], [-0.25, -1.0, -2.0], 1)]
        rig.step(
            (plain.request_id, start + place, [99], 0),
            (admitted.request_id, start + place, [byte], 0),
            logprobs=sampled_logprobs(rows),
        )
    rig.edge.on_caught_up(1)
    rig.turn()
    _, chunk = sorted(rig.take(), key=lambda chunk: chunk.client_request_id != "plain")
    columns = chunk.logprobs
    assert unpack_ids(columns.token_ids) == [97, 0xE5, 98, 0xE5]
    assert floats(columns.logprobs) == [-0.25, -1.0, -0.25, -1.0]
    assert unpack_ids(columns.ranks) == [1, 1]
    assert columns.decoded == ["a", "�", "b", "�"]
    assert columns.num_top == 1


def test_prompt_logprobs_come_in_parts_and_twice(rig: EdgeRig) -> None:
    params = SamplingParams(prompt_logprobs=1, n=2, max_tokens=2)
    admitted = rig.generate(prompt_token_ids=[10, 11, 12, 13], sampling_params=params)
    first = admitted.request_id
    part = prompt_logprobs(first, 1, [[11, 5]])
    rig.step(prompt_logprobs=[part])
    rig.step((first + 1, 4, [97], 0))  # a sample that is ahead waits for the prompt
    assert rig.take() == []
    rig.step(prompt_logprobs=[part, prompt_logprobs(first + 1, 1, [[11, 5]])])
    rest = prompt_logprobs(first, 2, [[12, 6, 7], [13, 7, 8]])
    rig.step((first, 4, [98], 0), prompt_logprobs=[rest])
    chunks = rig.take()
    assert sorted(chunk.index for chunk in chunks) == [0, 1]
    columns = chunks[0].prompt_logprobs
    assert unpack_ids(columns.token_ids) == [-1, -1, 11, 5, 12, 6, 13, 7]
    assert unpack_ids(columns.ranks) == [0, 1, 2, 3]
    assert columns.decoded[:3] == ["", "", rig.model.tokenizer.token_text(11)]
    assert chunks[1].prompt_logprobs is None


def test_a_sample_that_ends_before_its_prompt_is_known_is_not_held(rig: EdgeRig) -> None:
    params = SamplingParams(prompt_logprobs=0, max_tokens=2)
    admitted = rig.generate(prompt_token_ids=[10, 11], sampling_params=params)
    rig.step((admitted.request_id, 2, [], 3), errors={0: "broken"})
    text, _, last = joined(rig.take())
    assert (text, last.finish_reason) == ("", "error")


def test_one_token_prompts_have_no_logprobs_to_wait_for(rig: EdgeRig) -> None:
    admitted = rig.generate(
        prompt_token_ids=[10], sampling_params=SamplingParams(prompt_logprobs=0)
    )
    rig.run(admitted, [97])
    (chunk,) = rig.take()
    assert unpack_ids(chunk.prompt_logprobs.token_ids) == [-1]
