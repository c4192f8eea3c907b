"""The text edge as a plain object: what clients and the ring see of it."""

import msgspec
import pytest
from edge_rig import VOCAB_SIZE, EdgeRig, geometry, joined

from pillion.actors.detokenizer.client_sessions import HELLO_WITHIN_NS, MAX_SESSIONS
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.control import Drain, Drained, EngineFailed, PeerRestarted, Shutdown
from pillion.messages.ids import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP
from pillion.messages.requests import (
    AbortRequest,
    NewRequest,
    RequestClosed,
    RequestRejected,
    RequestScheduled,
)
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    CancelRequest,
    DetokenizeReply,
    DetokenizeRequest,
    EmbedRequest,
    GenerateChunk,
    GenerateRequest,
    Hello,
    RequestFailed,
    TokenizeReply,
    TokenizeRequest,
    Welcome,
)
from pillion.runtime.errors import InvariantBroken


def test_hello_is_answered_with_what_is_known(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, ready=False, served_model_name="mine")
    rig.edge.open_session(1, rig.now_ns)
    rig.send(1, Hello(protocol_version=1))
    (welcome,) = rig.take()
    assert isinstance(welcome, Welcome)
    assert (welcome.ready, welcome.max_model_len, welcome.model_name) == (False, 0, "mine")
    rig.edge.on_model(text_model)
    rig.ring(geometry(VOCAB_SIZE))
    rig.edge.open_session(2, rig.now_ns)
    rig.send(2, Hello(protocol_version=1))
    (welcome,) = rig.take(2)
    assert (welcome.ready, welcome.max_model_len, welcome.vocab_size) == (True, 64, VOCAB_SIZE)
    assert "chat" in welcome.capabilities


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (Hello(protocol_version=2), "unsupported"),
        (GenerateRequest(client_request_id="r", prompt="x"), "invalid_request"),
        (b"GET / HTTP/1.1\r\n\r\n", "invalid_request"),
        (b"", "invalid_request"),
    ],
)
def test_a_wrong_first_frame_is_answered_and_hung_up_on(
    text_model: TextModel, frame: object, code: str
) -> None:
    rig = EdgeRig(text_model)
    rig.edge.open_session(7, rig.now_ns)
    rig.send(7, frame)
    (failure,) = rig.take(7)
    assert isinstance(failure, RequestFailed)
    assert (failure.client_request_id, failure.code) == ("", code)
    assert rig.hung_up == [7]


def test_tokens_come_back_as_chunks_that_join(rig: EdgeRig) -> None:
    admitted = rig.generate(prompt="hello world", return_prompt_token_ids=True)
    assert rig.model.tokenizer.decode(unpack_ids(admitted.prompt_token_ids), True) == "hello world"
    rig.ring(
        RequestScheduled(
            epoch=1, sequence_id=admitted.request_id, num_cached_tokens=2, miss_reason="cold"
        )
    )
    ids = rig.model.tokenizer.encode("the world é 好", False)
    rig.run(admitted, ids, FINISH_LENGTH)
    chunks = rig.take()
    text, token_ids, last = joined(chunks)
    assert (text, token_ids) == ("the world é 好", ids)
    assert (last.finish_reason, last.stop_reason) == ("length", None)
    assert len(chunks) == len(ids)
    assert chunks[0].prompt_token_ids == admitted.prompt_token_ids
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    usage = last.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        len(unpack_ids(admitted.prompt_token_ids)),
        len(ids),
    )
    assert (usage.cached_tokens, usage.cache_miss_reason) == (2, "cold")
    assert not rig.take_ring(AbortRequest)


def test_the_stop_token_is_a_token_without_text(rig: EdgeRig) -> None:
    end = rig.model.tokenizer.token_id("<|im_end|>")
    assert end is not None
    admitted = rig.generate()
    assert admitted.sampling.stop_token_ids == [end]
    rig.run(admitted, [104, 105, end], FINISH_STOP)
    text, token_ids, last = joined(rig.take())
    assert (text, token_ids) == ("hi", [104, 105, end])
    assert (last.finish_reason, last.stop_reason) == ("stop", None)


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi!")])
def test_a_stop_id_of_the_client_is_named(rig: EdgeRig, include: bool, text: str) -> None:
    params = SamplingParams(
        stop_token_ids=[33], include_stop_str_in_output=include, ignore_eos=True
    )
    admitted = rig.generate(sampling_params=params)
    assert admitted.sampling.stop_token_ids == [33]
    rig.run(admitted, [104, 105, 33], FINISH_STOP)
    found, token_ids, last = joined(rig.take())
    assert (found, token_ids) == (text, [104, 105, 33])
    assert (last.finish_reason, last.stop_reason) == ("stop", 33)


def test_a_stop_string_ends_the_sample_and_tells_the_scheduler(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(stop=["END", "zz"], max_tokens=50))
    start = len(admitted.prompt_token_ids) // 4
    for place, character in enumerate("one ENEND two"):
        rig.step((admitted.request_id, start + place, [ord(character)], 0))
    text, token_ids, last = joined(rig.take())
    assert text == "one EN"
    assert bytes(token_ids) == b"one ENEND"
    assert (last.finish_reason, last.stop_reason) == ("stop", "END")
    (abort,) = rig.take_ring(AbortRequest)
    assert (abort.sequence_ids, abort.reason) == ([admitted.request_id], "stop")


def test_a_stop_string_on_the_last_token_needs_no_abort(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(stop="b", max_tokens=2))
    rig.run(admitted, list(b"ab"), FINISH_LENGTH)
    text, _, last = joined(rig.take())
    assert (text, last.finish_reason, last.stop_reason) == ("a", "stop", "b")
    assert not rig.take_ring(AbortRequest)


def test_no_stop_string_is_found_before_min_tokens(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(stop="b", min_tokens=3, max_tokens=9))
    start = len(admitted.prompt_token_ids) // 4
    rig.step((admitted.request_id, start, list(b"abab"), 0))
    text, token_ids, last = joined(rig.take())
    assert (text, bytes(token_ids), last.finish_reason) == ("aba", b"abab", "stop")


def test_what_was_held_back_comes_at_the_end(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(stop="bcd", max_tokens=9))
    rig.run(admitted, [*b"abc", 0xE5, 0xA5], FINISH_LENGTH)
    text, _, last = joined(rig.take())
    assert (text, last.finish_reason) == ("abc�", "length")


def test_tokens_that_are_known_already_are_skipped(rig: EdgeRig) -> None:
    admitted = rig.generate()
    start = len(admitted.prompt_token_ids) // 4
    rig.step((admitted.request_id, start, list(b"ab"), 0))
    rig.step((admitted.request_id, start, list(b"abc"), 0))
    rig.step((admitted.request_id, start + 1, list(b"bc"), 0))
    rig.step((admitted.request_id, start + 3, list(b"d"), FINISH_LENGTH))
    text, token_ids, _ = joined(rig.take())
    assert (text, bytes(token_ids)) == ("abcd", b"abcd")


def test_a_gap_breaks_an_invariant(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.connect()
    admitted = rig.generate()
    start = len(admitted.prompt_token_ids) // 4
    with pytest.raises(InvariantBroken, match="gets the one at"):
        rig.step((admitted.request_id, start + 1, [97], 0))


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE, 2**31 - 1])
def test_an_impossible_token_fails_its_request_alone(rig: EdgeRig, wrong: int) -> None:
    bad, good = rig.generate("bad"), rig.generate("good")
    start = len(bad.prompt_token_ids) // 4
    rig.step(
        (bad.request_id, start, [97], 0),
        (good.request_id, start, [98], 0),
    )
    rig.step(
        (bad.request_id, start + 1, [wrong], 0),
        (good.request_id, start + 1, [99], FINISH_LENGTH),
    )
    replies = rig.take()
    (failure,) = [reply for reply in replies if isinstance(reply, RequestFailed)]
    assert (failure.client_request_id, failure.code) == ("bad", "internal")
    assert str(wrong) in failure.message
    (abort,) = rig.take_ring(AbortRequest)
    assert abort.sequence_ids == [bad.request_id]
    good_chunks = [reply for reply in replies if reply.client_request_id == "good"]
    assert joined(good_chunks)[0] == "bc"


def test_an_id_between_tokenizer_and_model_vocabulary_has_no_text(rig: EdgeRig) -> None:
    admitted = rig.generate()
    rig.run(admitted, [97, VOCAB_SIZE - 1, 98])
    assert joined(rig.take())[0] == "ab"


def test_an_error_of_a_row_is_told(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(n=2))
    start = len(admitted.prompt_token_ids) // 4
    rig.step((admitted.request_id, start, [], FINISH_ERROR), errors={0: "NaN in the logits"})
    rig.run(admitted, [97], index=1)
    chunks = rig.take()
    assert joined(chunks, 0)[2].finish_reason == "error"
    assert joined(chunks, 0)[2].error == "NaN in the logits"
    assert joined(chunks, 1)[0] == "a"
    assert joined(chunks, 1)[2].usage is not None


def test_samples_have_seeds_of_their_own(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(n=3, seed=-5))
    assert admitted.seeds[0] == -5
    assert len(set(admitted.seeds)) == 3
    again = rig.generate("again", sampling_params=SamplingParams(n=3, seed=-5))
    assert again.seeds == admitted.seeds
    assert again.request_id == admitted.request_id + 3


def test_without_streaming_there_is_one_chunk_for_each_sample(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(n=2), stream=False)
    rig.run(admitted, list(b"one"), index=1)
    assert [chunk.index for chunk in rig.take()] == [1]
    rig.run(admitted, list(b"two"), index=0)
    (chunk,) = rig.take()
    assert (chunk.index, chunk.text, bytes(unpack_ids(chunk.token_ids))) == (0, "two", b"two")
    assert chunk.usage is not None
    assert chunk.usage.completion_tokens == 6


def test_without_streaming_nothing_is_sent_before_the_end_however_many_steps_that_takes(
    rig: EdgeRig,
) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(max_tokens=40), stream=False)
    start = len(admitted.prompt_token_ids) // 4
    for place in range(39):
        rig.step((admitted.request_id, start + place, [97], 0))
    assert rig.take() == []
    rig.step((admitted.request_id, start + 39, [97], FINISH_LENGTH))
    (chunk,) = rig.take()
    assert chunk.text == "a" * 40


def test_tokens_that_are_said_again_are_taken_once(rig: EdgeRig) -> None:
    admitted = rig.generate()
    start, sequence_id = len(admitted.prompt_token_ids) // 4, admitted.request_id
    rig.step((sequence_id, start, list(b"a"), 0))
    rig.step((sequence_id, start + 1, list(b"b"), 0))
    rig.step((sequence_id, start + 1, list(b"b"), 0))
    rig.step((sequence_id, start + 1, list(b"bc"), 0))
    rig.step((sequence_id, start + 3, list(b"de"), 0))
    rig.step((sequence_id, start + 5, list(b"f"), FINISH_LENGTH))
    chunks = rig.take()
    assert joined(chunks)[0] == "abcdef"
    assert [chunk.text for chunk in chunks] == ["a", "b", "c", "de", "f"]


def test_several_steps_at_once_make_one_chunk(rig: EdgeRig) -> None:
    admitted = rig.generate()
    start = len(admitted.prompt_token_ids) // 4
    rig.ring(
        *(
            rig.step_output((admitted.request_id, start + place, [byte], 0))
            for place, byte in enumerate(b"abc")
        )
    )
    (chunk,) = rig.take()
    assert chunk.text == "abc"


def test_a_cancel_ends_every_sample_with_what_it_has(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(n=2, stop="zzz"))
    start = len(admitted.prompt_token_ids) // 4
    rig.step((admitted.request_id, start, list(b"az"), 0))
    rig.send(1, CancelRequest(client_request_id="r"))
    chunks = rig.take()
    assert joined(chunks, 0)[0] == "az"
    assert {joined(chunks, index)[2].finish_reason for index in (0, 1)} == {"abort"}
    (abort,) = rig.take_ring(AbortRequest)
    assert abort.sequence_ids == [admitted.request_id, admitted.request_id + 1]
    rig.step((admitted.request_id, start + 2, [97], 0))
    rig.send(1, CancelRequest(client_request_id="r"))
    assert rig.take() == []


def test_a_client_that_leaves_cancels_its_requests(rig: EdgeRig) -> None:
    rig.connect(2)
    mine = rig.generate("mine")
    other = rig.generate("other", session_id=2)
    rig.edge.close_session(2)
    rig.turn()
    (abort,) = rig.take_ring(AbortRequest)
    assert abort.sequence_ids == [other.request_id]
    start = len(mine.prompt_token_ids) // 4
    rig.step((mine.request_id, start, [97], FINISH_LENGTH), (other.request_id, start, [98], 0))
    assert joined(rig.take(1))[0] == "a"
    assert rig.take(2) == []


def test_a_client_may_use_an_id_once_at_a_time(rig: EdgeRig) -> None:
    admitted = rig.generate("r")
    failure = rig.refused(client_request_id="r", prompt="x")
    assert (failure.code, failure.param) == ("invalid_request", "client_request_id")
    rig.run(admitted, [97])
    rig.take()
    rig.generate("r")


def test_too_many_requests_are_refused_before_tokenizing(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, max_queued_requests=1)
    rig.connect()
    admitted = [rig.generate(str(number)) for number in range(5)]
    rig.hold_jobs = True
    failure = rig.refused(prompt="x" * 100_000)
    assert (failure.code, failure.retry_after_ms) == ("overloaded", 1000)
    assert rig.held_jobs == []
    rig.run(admitted[0], [97])
    rig.take()
    rig.hold_jobs = False
    rig.generate("now")


def test_what_comes_before_the_engine_is_ready_waits(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, ready=False)
    rig.connect()
    rig.send(1, GenerateRequest(client_request_id="a", prompt="hello"))
    rig.send(1, GenerateRequest(client_request_id="b", prompt="hello"))
    rig.send(1, TokenizeRequest(client_request_id="c", prompt="hello"))
    rig.send(1, CancelRequest(client_request_id="b"))
    assert not rig.take_ring(NewRequest)
    rig.ring(geometry(VOCAB_SIZE))
    assert not rig.take_ring(NewRequest)
    rig.edge.on_model(text_model)
    rig.turn()
    assert len(rig.take_ring(NewRequest)) == 1
    kinds = {reply.client_request_id: type(reply) for reply in rig.take()}
    assert kinds == {"b": GenerateChunk, "c": TokenizeReply}


def test_a_deadline_ends_what_the_scheduler_does_not_have_yet(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, ready=False)
    rig.connect()
    rig.send(1, GenerateRequest(client_request_id="a", prompt="x", deadline_ms=100))
    assert rig.next_tick_ns == rig.now_ns + 100_000_000
    rig.now_ns += 100_000_000
    rig.turn()
    (chunk,) = rig.take()
    assert chunk.finish_reason == "timeout"
    rig.edge.on_model(text_model)
    rig.ring(geometry(VOCAB_SIZE))
    assert not rig.take_ring(NewRequest)
    admitted = rig.generate("b", deadline_ms=100)
    assert admitted.deadline_ns == rig.now_ns + 100_000_000
    rig.now_ns += 200_000_000
    rig.turn()
    assert rig.take() == []
    rig.ring(RequestClosed(epoch=1, sequence_id=admitted.request_id, finish_reason="timeout"))
    (chunk,) = rig.take()
    assert chunk.finish_reason == "timeout"


def test_a_rejection_of_the_scheduler_is_passed_on(rig: EdgeRig) -> None:
    admitted = rig.generate(sampling_params=SamplingParams(n=2))
    rig.ring(
        RequestRejected(
            epoch=1,
            request_id=admitted.request_id,
            code="invalid_request",
            message="needs 9 blocks of 8",
        )
    )
    (failure,) = rig.take()
    assert (failure.code, failure.message) == ("invalid_request", "needs 9 blocks of 8")
    assert not rig.take_ring(AbortRequest)


def test_a_new_scheduler_gets_what_is_open(rig: EdgeRig) -> None:
    whole = rig.generate("whole", sampling_params=SamplingParams(n=2, stop="x"))
    done = rig.generate("done")
    rig.run(done, [97])
    start = len(whole.prompt_token_ids) // 4
    rig.step((whole.request_id, start, list(b"ax"), 0), (whole.request_id + 1, start, [98], 0))
    rig.take_ring(AbortRequest)
    rig.ring(PeerRestarted(actor="scheduler", epoch=2))
    (again,) = rig.take_ring(NewRequest)
    assert again.request_id == whole.request_id
    assert [bytes(unpack_ids(ids)) for ids in again.produced_token_ids] == [b"ax", b"b"]
    assert again.finished == [0]
    assert again.seeds == whole.seeds
    rig.take()
    stale = RequestClosed(epoch=1, sequence_id=whole.request_id + 1, finish_reason="error")
    rig.ring(stale)
    assert rig.take() == []
    # The old plans still run, and the new scheduler computes this token again.
    rig.step((whole.request_id + 1, start + 1, [100], FINISH_LENGTH))
    assert rig.take() == []
    rig.step((whole.request_id + 1, start + 1, [99], FINISH_LENGTH), plan_epoch=2)
    (chunk,) = rig.take()
    assert (chunk.text, chunk.offset, chunk.finish_reason) == ("c", 1, "length")


def test_steps_of_a_dead_worker_are_dropped(rig: EdgeRig) -> None:
    admitted = rig.generate()
    start = len(admitted.prompt_token_ids) // 4
    rig.ring(PeerRestarted(actor="gpu_worker", epoch=2))
    (again,) = rig.take_ring(NewRequest)
    assert (again.request_id, again.worker_epoch) == (admitted.request_id, 2)
    rig.step((admitted.request_id, start, [97], 0))
    assert rig.take() == []
    rig.step((admitted.request_id, start, [98], FINISH_LENGTH), epoch=2)
    assert joined(rig.take())[0] == "b"


def test_ids_of_a_restarted_edge_are_new(text_model: TextModel) -> None:
    first, second = EdgeRig(text_model), EdgeRig(text_model, epoch=2)
    for rig in (first, second):
        rig.connect()
    assert second.generate().request_id - first.generate().request_id == 2**32


def test_an_engine_that_fails_ends_every_request_at_once(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.connect()
    rig.hold_jobs = True
    admitted = rig.generate("a", sampling_params=SamplingParams(n=3))
    rig.send(1, GenerateRequest(client_request_id="b", prompt="x" * 10_000))
    rig.send(1, TokenizeRequest(client_request_id="c", prompt="x" * 10_000))
    start = len(admitted.prompt_token_ids) // 4
    rig.ring(
        rig.step_output((admitted.request_id, start, [97], 0)),
        EngineFailed(message="the worker died"),
    )
    replies = rig.take()
    assert replies[0].text == "a"
    assert {reply.client_request_id: type(reply) for reply in replies[1:]} == dict.fromkeys(
        "abc", RequestFailed
    )
    assert all(reply.message == "the worker died" for reply in replies[1:])
    assert rig.refused(prompt="x").code == "unavailable"
    rig.run_jobs()
    assert rig.take() == []
    rig.ring(Shutdown())
    assert rig.edge.finished
    assert rig.take() == []


def test_a_drain_waits_for_what_is_open(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.connect()
    admitted = rig.generate()
    rig.ring(Drain(deadline_ns=rig.now_ns + 1000))
    assert rig.refused(prompt="x").code == "unavailable"
    assert not rig.take_ring(Drained)
    assert rig.next_tick_ns == rig.now_ns + 1000
    rig.run(admitted, [97])
    assert joined(rig.take())[2].finish_reason == "length"
    assert not rig.take_ring(Drained)  # what was sent may be more than the client takes
    assert rig.next_tick_ns == rig.now_ns
    rig.turn()
    assert len(rig.take_ring(Drained)) == 1
    rig.turn()
    assert not rig.take_ring(Drained)


def test_a_drain_ends_at_its_deadline(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.connect()
    admitted = rig.generate()
    rig.ring(Drain(deadline_ns=rig.now_ns + 1000))
    rig.now_ns += 1000
    rig.turn()
    (failure,) = rig.take()
    assert (failure.client_request_id, failure.code) == ("r", "unavailable")
    (abort,) = rig.take_ring(AbortRequest)
    assert abort.sequence_ids == [admitted.request_id]
    assert len(rig.take_ring(Drained)) == 1


def test_questions_about_tokens(rig: EdgeRig) -> None:
    rig.send(1, TokenizeRequest(client_request_id="t", prompt="hello world"))
    (reply,) = rig.take()
    assert isinstance(reply, TokenizeReply)
    assert reply.max_model_len == 64
    ids = unpack_ids(reply.token_ids)
    rig.send(1, DetokenizeRequest(client_request_id="d", token_ids=ids))
    (reply,) = rig.take()
    assert isinstance(reply, DetokenizeReply)
    assert reply.text == "hello world"
    rig.send(1, DetokenizeRequest(client_request_id="d", token_ids=[2**40]))
    (failure,) = rig.take()
    assert (failure.code, failure.param) == ("invalid_request", "token_ids")
    messages = [{"role": "user", "content": "hi"}]
    rig.send(1, TokenizeRequest(client_request_id="t", messages=messages))
    (reply,) = rig.take()
    text = rig.model.tokenizer.decode(unpack_ids(reply.token_ids), False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_embeddings_are_refused(rig: EdgeRig) -> None:
    rig.send(1, EmbedRequest(client_request_id="e", inputs=["x"]))
    (failure,) = rig.take()
    assert (failure.client_request_id, failure.code) == ("e", "unsupported")


def test_clients_of_one_key_share_and_others_do_not(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    keys = []
    for session_id, key in enumerate(["", "", "team", "team"], start=1):
        rig.connect(session_id, key)
        keys.append(rig.generate(session_id=session_id).client_key)
    assert len(set(keys)) == 3
    assert keys[2] == keys[3]
    for session_id in range(1, 5):
        rig.edge.close_session(session_id)
    rig.connect(9, "team")
    assert rig.generate(session_id=9).client_key not in keys


def test_outcomes_add_up_to_what_was_received(rig: EdgeRig) -> None:
    rig.run(rig.generate("finished"), [97])
    rig.generate("cancelled")
    rig.send(1, CancelRequest(client_request_id="cancelled"))
    rig.take()
    rig.refused(prompt="")
    late = rig.generate("late")
    rig.ring(RequestClosed(epoch=1, sequence_id=late.request_id, finish_reason="timeout"))
    broken = rig.generate("broken")
    rig.step((broken.request_id, len(broken.prompt_token_ids) // 4, [-1], 0))
    rig.connect(2)
    rig.generate("left", session_id=2)
    rig.edge.close_session(2)
    counters = rig.edge.counters
    assert counters["requests_received"] == 6
    assert {name: value for name, value in counters.items() if "requests" in name} == {
        "requests_received": 6,
        "requests_finished": 1,
        "requests_aborted": 2,
        "requests_timeout": 1,
        "requests_failed": 1,
        "requests_refused": 1,
    }


def test_bytes_are_taken_as_prompt_ids(rig: EdgeRig) -> None:
    admitted = rig.generate(prompt_token_ids=pack_ids([1, 2, 3]))
    assert unpack_ids(admitted.prompt_token_ids) == [1, 2, 3]


def test_the_longest_prompt_and_what_fits_behind_it(rig: EdgeRig) -> None:
    admitted = rig.generate("a", prompt_token_ids=[1] * 63, sampling_params=SamplingParams())
    assert admitted.sampling.max_tokens == 1
    none = rig.generate(
        "b", prompt_token_ids=[1] * 4, sampling_params=SamplingParams(max_tokens=None)
    )
    assert none.sampling.max_tokens == 60
    failure = rig.refused(prompt_token_ids=[1] * 64)
    assert "64 tokens" in failure.message
    assert "65" in failure.message
    cut = SamplingParams(truncate_prompt_tokens=3)
    admitted = rig.generate("c", prompt_token_ids=list(range(100)), sampling_params=cut)
    assert unpack_ids(admitted.prompt_token_ids) == [97, 98, 99]


def test_frames_may_carry_fields_of_later_versions(rig: EdgeRig) -> None:
    frame = {"type": "GenerateRequest", "client_request_id": "r", "prompt": "x", "later": 1}
    rig.send(1, msgspec.msgpack.encode(frame))
    assert len(rig.take_ring(NewRequest)) == 1


def test_deadlines_of_ended_requests_do_not_pile_up(rig: EdgeRig) -> None:
    for number in range(500):
        rig.run(rig.generate(str(number), deadline_ms=10**9), [97])
        rig.take()
    assert len(rig.edge._admissions._deadlines) < 100


def test_a_fairness_key_has_a_limit(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.edge.open_session(1, rig.now_ns)
    rig.send(1, Hello(protocol_version=1, fairness_key="k" * 1000))
    (failure,) = rig.take()
    assert (failure.param, rig.hung_up) == ("fairness_key", [1])


def test_connections_have_a_limit(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    for session_id in range(MAX_SESSIONS):
        rig.edge.open_session(session_id, rig.now_ns)
    rig.edge.open_session(9999, rig.now_ns)
    rig.turn()
    (failure,) = rig.take(9999)
    assert (failure.code, rig.hung_up) == ("overloaded", [9999])
    rig.edge.open_session(9998, rig.now_ns, has_place=True)
    rig.send(9998, Hello(protocol_version=1))
    (welcome,) = rig.take(9998)
    assert isinstance(welcome, Welcome)
    rig.edge.close_session(9998)
    rig.edge.close_session(3)
    rig.connect(10_000)


def test_a_connection_that_does_not_say_who_it_is_is_given_up(text_model: TextModel) -> None:
    rig = EdgeRig(text_model)
    rig.connect(1)
    for session_id in (2, 3, 4):
        rig.edge.open_session(session_id, rig.now_ns)
        rig.now_ns += 1
    rig.edge.close_session(3)
    rig.now_ns += HELLO_WITHIN_NS - 4
    rig.turn()
    assert rig.next_tick_ns is not None
    rig.now_ns = rig.next_tick_ns
    rig.turn()
    (failure,) = rig.take(2)
    assert (failure.code, rig.hung_up) == ("invalid_request", [2])
    rig.now_ns += HELLO_WITHIN_NS
    rig.turn()
    assert rig.hung_up == [2, 4]
