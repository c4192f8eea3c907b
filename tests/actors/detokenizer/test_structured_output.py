"""Requests with a grammar at the text edge: admitted when it works, masked token by token, ended when complete."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edge_rig import CHATML, VOCAB_SIZE, EdgeRig, joined

from pillion.actors.detokenizer.answer_formats import REASONING_FORMATS, TOOL_FORMATS
from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.actors.detokenizer.grammars import demand
from pillion.actors.detokenizer.grammars.calls import (
    CompileGrammar,
    GrammarCompiled,
    GrammarReply,
)
from pillion.actors.detokenizer.grammars.compiled_grammars import CompiledGrammars
from pillion.actors.detokenizer.grammars.desk import ANSWER_LIMIT_NS, MAX_STRIKES
from pillion.actors.detokenizer.grammars.engine import GrammarEngine, GrammarError
from pillion.actors.detokenizer.grammars.process import GrammarServer
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.codec import unpack_ids
from pillion.messages.control import PeerRestarted
from pillion.messages.requests import AbortRequest, NewRequest, RequestScheduled
from pillion.messages.sampling import SamplingParams
from pillion.messages.steps import TokenMasks
from pillion.messages.structured_outputs import StructuredOutputsParams
from pillion.messages.text import CancelRequest, GenerateRequest, RequestFailed

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


class GrammarRig:
    """An edge, and the grammar process as a plain object behind it."""

    def __init__(self, rig: EdgeRig) -> None:
        self.rig = rig
        self.silent = False
        self.calls: list[Any] = []
        vocabulary = rig.edge.vocabulary()
        self._engine = GrammarEngine(vocabulary.tokens, vocabulary.special_ids)
        self._vocabulary = vocabulary
        self.new_process()

    def new_process(self) -> None:
        self._server = GrammarServer(private_fd=-1)
        self._server.on_call(self._vocabulary)

    def turn(self) -> None:
        """Answers what the edge has asked, until it asks nothing more."""
        while self.rig.edge.grammars.calls and not self.silent:
            calls = list(self.rig.edge.grammars.calls)
            self.calls += calls
            self.rig.edge.grammars.calls.clear()
            replies: list[GrammarReply] = []
            for call in calls:
                if isinstance(call, CompileGrammar):
                    replies.append(self._compiled(call))
                else:
                    replies += self._server.on_call(call)
            self.rig.edge.on_grammar_replies(replies, self.rig.now_ns)
            self.rig.turn()

    def _compiled(self, call: CompileGrammar) -> GrammarCompiled:
        try:
            self._engine.check(call.source)
        except GrammarError as error:
            return GrammarCompiled(request_id=call.request_id, error=str(error))
        return GrammarCompiled(request_id=call.request_id)

    def lose(self) -> None:
        """The process ends, and another one is there."""
        self.new_process()
        self.rig.edge.grammars.calls.clear()
        self.rig.edge.on_grammar_process_lost(self.rig.now_ns)
        self.rig.turn()

    def generate(self, structure: Any, **fields: Any) -> NewRequest:
        """A request that must be admitted."""
        sampling = fields.pop("sampling", {})
        params = SamplingParams(structured_outputs=structure, max_tokens=40, **sampling)
        message = {"client_request_id": "r", **fields}
        if "messages" not in message:
            message["prompt"] = "hello"
        self.rig.send(1, GenerateRequest(sampling_params=params, **message))
        self.turn()
        (admitted,) = self.rig.take_ring(NewRequest)
        assert admitted.sampling.needs_masks
        return admitted

    def refused(self, structure: Any, **fields: Any) -> RequestFailed:
        params = SamplingParams(structured_outputs=structure)
        asked = fields or {"prompt": "a"}
        self.rig.send(1, GenerateRequest(client_request_id="bad", sampling_params=params, **asked))
        self.turn()
        assert not self.rig.take_ring(NewRequest)
        (failure,) = self.rig.take()
        assert isinstance(failure, RequestFailed)
        return failure

    def seat(self, admitted: NewRequest, index: int = 0, slot: int = 0, epoch: int = 1) -> None:
        self.rig.ring(
            RequestScheduled(
                epoch=epoch,
                sequence_id=admitted.request_id + index,
                num_cached_tokens=0,
                miss_reason="",
                slot=slot,
                generation=7,
            )
        )

    def step(self, admitted: NewRequest, token_id: int, index: int = 0, finish: int = 0) -> None:
        sample = self.rig.edge._book.samples[admitted.request_id + index]
        position = len(admitted.prompt_token_ids) // 4 + len(sample.token_ids)
        self.rig.step((sample.sequence_id, position, [token_id], finish))
        self.turn()

    def masks(self) -> dict[tuple[int, int], set[int]]:
        """(slot, position) -> what may come."""
        found = {}
        for message in self.rig.take_ring(TokenMasks):
            slots, positions = unpack_ids(message.slots), unpack_ids(message.positions)
            bits = np.unpackbits(np.frombuffer(message.masks, np.uint8), bitorder="little")
            for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
                found[slot, position] = set(
                    np.flatnonzero(bits.reshape(len(slots), -1)[row]).tolist()
                )
        return found

    def mask(self) -> set[int]:
        (mask,) = self.masks().values()
        return mask


@pytest.fixture
def grammars(rig: EdgeRig) -> GrammarRig:
    return GrammarRig(rig)


def test_an_answer_is_led_to_its_end(grammars: GrammarRig) -> None:
    rig = grammars.rig
    admitted = grammars.generate(StructuredOutputsParams(json=SCHEMA))
    assert grammars.masks() == {}
    grammars.seat(admitted, slot=2)
    text = '{"a":2}'
    start = len(admitted.prompt_token_ids) // 4
    for place, byte in enumerate(text.encode()):
        ((slot, position), mask), *more = grammars.masks().items()
        assert (slot, position, more) == (2, start + place, [])
        assert byte in mask
        assert ord("x") not in mask
        grammars.step(admitted, byte)
    answer, token_ids, last = joined(rig.take())
    assert (answer, bytes(token_ids), last.finish_reason) == (text, text.encode(), "stop")
    assert json.loads(answer) == {"a": 2}
    (abort,) = rig.take_ring(AbortRequest)
    assert (abort.sequence_ids, abort.reason) == ([admitted.request_id], "stop")
    assert rig.edge.gauges["open_grammars"] == 0


def test_the_models_end_may_come_where_the_grammar_is_satisfied(
    grammars: GrammarRig, text_model: TextModel
) -> None:
    (end, *_) = sorted(text_model.end_ids)
    admitted = grammars.generate({"regex": "a+"})
    grammars.seat(admitted)
    assert grammars.mask() == {ord("a")}
    grammars.step(admitted, ord("a"))
    assert grammars.mask() >= {ord("a"), end}


def test_samples_have_grammars_of_their_own(grammars: GrammarRig) -> None:
    admitted = grammars.generate({"choice": ["ab", "cd"]}, sampling={"n": 2})
    grammars.seat(admitted, index=0, slot=0)
    grammars.seat(admitted, index=1, slot=1)
    grammars.masks()
    grammars.step(admitted, ord("a"), index=0)
    grammars.step(admitted, ord("c"), index=1)
    assert list(grammars.masks().values()) == [{ord("b")}, {ord("d")}]


@pytest.mark.parametrize(
    "structure",
    [
        {"regex": "["},
        {"regex": "a?" * 500_000},
        {"json": '"hello"'},
        {"json": {"type": 7}},
        {"json": {"$ref": "#"}},
        {"json": '{"items":' * 2000 + "{}" + "}" * 2000},
        {"grammar": "root ::= ("},
    ],
    ids=lambda structure: str(structure)[:30],
)
def test_what_cannot_work_is_refused_alone(grammars: GrammarRig, structure: Any) -> None:
    open_one = grammars.generate({"regex": "a+"})
    failure = grammars.refused(structure)
    assert (failure.code, failure.param) == ("invalid_request", "structured_outputs")
    assert failure.message.startswith("structured_outputs")
    grammars.seat(open_one)
    assert grammars.mask() == {ord("a")}


def test_a_grammar_that_fails_after_admission_ends_that_request_alone(
    grammars: GrammarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = grammars.generate({"regex": "b+"}, client_request_id="other")
    with monkeypatch.context() as patched:
        patched.setattr(CompiledGrammars, "get", _raise)
        admitted = grammars.generate({"regex": "a+"})
    (chunk,) = grammars.rig.take()
    assert (chunk.client_request_id, chunk.finish_reason) == ("r", "error")
    assert chunk.error == "structured_outputs: out of order"
    assert (chunk.error_code, chunk.error_param) == ("invalid_request", "structured_outputs")
    assert grammars.rig.edge.counters["requests_refused"] == 1
    (abort,) = grammars.rig.take_ring(AbortRequest)
    assert abort.sequence_ids == [admitted.request_id]
    grammars.seat(other)
    assert grammars.mask() == {ord("b")}


def _raise(*_: object) -> None:
    raise GrammarError("out of order")


def test_a_token_outside_the_grammar_ends_the_request(grammars: GrammarRig) -> None:
    admitted = grammars.generate({"regex": "a+"})
    grammars.step(admitted, ord("z"))
    *_, last = grammars.rig.take()
    assert last.finish_reason == "error"
    assert "does not fit" in last.error
    assert last.error_code == "internal"
    assert grammars.rig.edge.counters["requests_failed"] == 1


def test_a_grammar_that_outgrows_its_limits_is_its_requests_fault(grammars: GrammarRig) -> None:
    other = grammars.generate({"regex": "b+"}, client_request_id="other")
    admitted = grammars.generate({"grammar": 'root ::= "a" root'}, sampling={"n": 2})
    for index in range(2):
        grammars.step(admitted, ord("a"), index)
    first, second = [chunk for chunk in grammars.rig.take() if chunk.finish_reason]
    for chunk in (first, second):
        assert (chunk.finish_reason, chunk.error_code) == ("error", "invalid_request")
        assert "takes too much" in chunk.error
    grammars.seat(other)
    assert grammars.mask() == {ord("b")}


def test_another_process_goes_on_where_the_first_one_was(grammars: GrammarRig) -> None:
    admitted = grammars.generate({"choice": ["abc"]})
    grammars.seat(admitted)
    grammars.step(admitted, ord("a"))
    grammars.masks()
    grammars.lose()
    grammars.turn()
    assert grammars.mask() == {ord("b")}
    assert grammars.rig.edge.counters["grammar_processes_lost"] == 1


def test_who_ends_every_process_ends_with_an_error(grammars: GrammarRig) -> None:
    rig = grammars.rig
    grammars.generate({"choice": ["abc"]})
    bad = grammars.generate({"regex": "b+"}, client_request_id="bad")
    for _ in range(MAX_STRIKES):
        grammars.silent = True
        grammars.step(bad, ord("b"))
        rig.take()
        grammars.lose()
        grammars.silent = False
        # The other one is answered, then the process ends.
        calls = rig.edge.grammars.calls
        calls[:] = [call for call in calls if call.sequence_id != bad.request_id]
        grammars.turn()
    *_, last = rig.take()
    assert (last.client_request_id, last.finish_reason) == ("bad", "error")
    assert rig.edge.gauges["open_grammars"] == 1


def test_a_compilation_that_ends_the_process_is_refused(grammars: GrammarRig) -> None:
    grammars.silent = True
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    grammars.rig.send(1, GenerateRequest(client_request_id="r", prompt="a", sampling_params=params))
    grammars.lose()
    (failure,) = grammars.rig.take()
    assert (failure.code, failure.param) == ("invalid_request", "structured_outputs")


def test_a_silent_process_is_given_up(grammars: GrammarRig) -> None:
    rig = grammars.rig
    grammars.silent = True
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
    rig.send(1, GenerateRequest(client_request_id="r", prompt="a", sampling_params=params))
    assert rig.next_tick_ns == rig.now_ns + ANSWER_LIMIT_NS
    assert not rig.edge.grammars.is_stuck(rig.now_ns)
    assert rig.edge.grammars.is_stuck(rig.now_ns + ANSWER_LIMIT_NS)


def test_a_client_that_leaves_takes_its_grammars_along(grammars: GrammarRig) -> None:
    rig = grammars.rig
    grammars.generate({"regex": "a+"})
    rig.send(1, CancelRequest(client_request_id="r"))
    assert rig.edge.gauges["open_grammars"] == 0
    grammars.silent = True
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="b+"))
    rig.send(1, GenerateRequest(client_request_id="s", prompt="a", sampling_params=params))
    rig.edge.close_session(1)
    grammars.silent = False
    grammars.turn()
    assert not rig.take_ring(NewRequest)
    assert rig.edge.grammars.watch(rig.now_ns) is None


def test_a_new_scheduler_gets_the_mask_for_its_own_slot(grammars: GrammarRig) -> None:
    admitted = grammars.generate({"choice": ["abc"]})
    grammars.seat(admitted)
    grammars.step(admitted, ord("a"))
    grammars.masks()
    grammars.rig.ring(PeerRestarted(actor="scheduler", epoch=2))
    (again,) = grammars.rig.take_ring(NewRequest)
    assert unpack_ids(again.produced_token_ids[0]) == [ord("a")]
    grammars.seat(admitted, slot=3, epoch=2)
    (message,) = grammars.rig.take_ring(TokenMasks)
    assert (message.epoch, unpack_ids(message.slots)) == (2, [3])


@pytest.fixture
def chats(text_model: TextModel) -> GrammarRig:
    """A model whose template opens the reasoning when it is told to."""
    template = CHATML + "{# tools #}{% if thinks is defined %}<think>{% endif %}{{ tools or '' }}"
    model = replace(
        text_model,
        chat_template=ChatTemplate({"default": template}, {}),
        tool_format=TOOL_FORMATS["hermes"],
        reasoning_format=REASONING_FORMATS["qwen3"],
    )
    rig = EdgeRig(model, max_model_len=1024)
    rig.connect()
    return GrammarRig(rig)


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "parse_output": True}


def test_a_grammar_begins_behind_the_reasoning(chats: GrammarRig) -> None:
    asked = {**CHAT, "chat_template_kwargs": {"thinks": True}}
    admitted = chats.generate({"choice": ["yes"]}, **asked)
    chats.seat(admitted)
    for byte in b"Hm.</think>":
        assert len(chats.mask()) >= VOCAB_SIZE
        chats.step(admitted, byte)
    for byte in b"yes":
        assert chats.mask() == {byte}
        chats.step(admitted, byte)
    *_, last = chats.rig.take()
    assert last.finish_reason == "stop"


def test_a_model_that_may_not_reason_is_held_to_its_grammar_at_once(chats: GrammarRig) -> None:
    admitted = chats.generate({"choice": ["yes"]}, **CHAT)
    chats.seat(admitted)
    for byte in b"yes":
        assert chats.mask() == {byte}, "here the marker is no token, so it cannot begin"
        chats.step(admitted, byte)


def test_calls_that_must_come_are_the_grammar(chats: GrammarRig) -> None:
    parameters = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    function = {"name": "f", "parameters": {**parameters, "additionalProperties": False}}
    named = {"type": "function", "function": {"name": "f"}}
    tools = [{"type": "function", "function": function}]
    admitted = chats.generate(None, **CHAT, tools=tools, tool_choice=named)
    chats.seat(admitted)
    for byte in b'{"a":1}':
        assert byte in chats.mask()
        chats.step(admitted, byte)
    chunks = chats.rig.take()
    calls = [call for chunk in chunks for call in chunk.tool_calls or []]
    assert calls[0].name == "f"
    assert json.loads("".join(call.arguments for call in calls)) == {"a": 1}


NAMED = {"type": "function", "function": {"name": "bad"}}


@pytest.mark.parametrize(
    ("choice", "bad"),
    [
        *(
            (choice, bad)
            for choice in ("required", NAMED)
            for bad in (
                {"type": 7},
                {"type": "array", "uniqueItems": True},
                {"$ref": "#/$defs/nowhere"},
            )
        ),
        (NAMED, {"$ref": "#"}),
        (NAMED, {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ],
    ids=str,
)
def test_a_forced_function_whose_schema_cannot_be_kept_to_is_named(
    chats: GrammarRig, choice: Any, bad: Any
) -> None:
    good = {"type": "object", "properties": {"a": {"type": "integer"}}}
    functions = [{"name": "good", "parameters": good}, {"name": "bad", "parameters": bad}]
    tools = [{"type": "function", "function": function} for function in functions]
    failure = chats.refused(None, **CHAT, tools=tools, tool_choice=choice)
    assert (failure.code, failure.param) == ("invalid_request", "tools")
    said = 'tools: the schema of function "bad" cannot be kept to: '
    assert failure.message.startswith(said)
    assert len(failure.message) > len(said)


def test_forced_functions_with_schemas_that_are_too_long(
    chats: GrammarRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "MAX_SOURCE_CHARS", 100)
    parameters = {"type": "object", "description": "a" * 100}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    failure = chats.rig.refused(**CHAT, tools=tools, tool_choice="required")
    assert (failure.code, failure.param) == ("invalid_request", "tools")
    assert failure.message.startswith("tools: the schemas together may have")


def test_a_schema_that_is_nested_too_deeply_is_refused(chats: GrammarRig) -> None:
    parameters: dict[str, Any] = {}
    for _ in range(900):  # as deep as a frame may be, or nearly
        parameters = {"not": parameters}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    failure = chats.rig.refused(**CHAT, tools=tools, tool_choice="required")
    assert failure.code == "invalid_request"
    assert "nested too deeply" in failure.message


def test_a_strict_function_that_may_be_called_is_called_as_its_schema_says(
    chats: GrammarRig,
) -> None:
    parameters = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    function = {"name": "f", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function}]
    admitted = chats.generate(None, **CHAT, tools=tools)
    chats.seat(admitted)
    for byte in b'I look. <tool_call>{"name": "f", "arguments": {"a":':
        assert byte in chats.mask()
        chats.step(admitted, byte)
    assert chats.mask() & set(b'1"{[2') == {ord("1")}
    chats.step(admitted, ord("1"))
    for byte in b"}}</tool_call>":
        assert byte in chats.mask()
        chats.step(admitted, byte)
    chunks = chats.rig.take()
    assert "".join(chunk.text for chunk in chunks) == "I look."
    calls = [call for chunk in chunks for call in chunk.tool_calls or []]
    assert json.loads("".join(call.arguments for call in calls)) == {"a": 1}


def test_a_strict_function_beside_a_form_that_is_no_schema_is_refused(chats: GrammarRig) -> None:
    function = {"name": "f", "strict": True}
    failure = chats.rig.refused(
        **CHAT,
        tools=[{"type": "function", "function": function}],
        sampling_params={"structured_outputs": {"regex": "a"}},
    )
    assert (failure.code, failure.param) == ("unsupported", "tools")


def test_without_byte_tokens_there_are_no_grammars(
    rig: EdgeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.model.tokenizer, "_table", None)
    failure = rig.refused(prompt="a", sampling_params={"structured_outputs": {"regex": "a"}})
    assert (failure.code, failure.param) == ("unsupported", "structured_outputs")
