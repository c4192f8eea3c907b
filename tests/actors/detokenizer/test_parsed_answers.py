"""The edge takes reasoning and calls off its answers: chunks, finish reasons, and what tokens are shown."""

import json
from dataclasses import replace
from typing import Any

import pytest
from edge_rig import CHATML, EdgeRig
from written_answers import NESTED, WEATHER, hermes

from pillion.actors.detokenizer.answer_formats import REASONING_FORMATS, TOOL_FORMATS
from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.codec import unpack_ids
from pillion.messages.ids import FINISH_LENGTH, FINISH_STOP
from pillion.messages.requests import AbortRequest, NewRequest
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateChunk, GenerateRequest
from pillion.runtime.connection_end import ConnectionLost
from pillion.runtime.outputs import CompletionOutput
from pillion.runtime.request_assembly import RequestAssembly
from pillion.runtime.resumable import Resumable

CHAT = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "run")
]
TWO_CALLS = f"I look.\n{hermes('get_weather', WEATHER)}\n{hermes('run', NESTED)}"


@pytest.fixture
def model(text_model: TextModel) -> TextModel:
    """A model that thinks and writes calls as Hermes does."""
    template = CHATML + "{# tools #}{% if thinks is defined %}<think>\n{% endif %}{{ tools or '' }}"
    return replace(
        text_model,
        chat_template=ChatTemplate({"default": template}, {}),
        tool_format=TOOL_FORMATS["hermes"],
        reasoning_format=REASONING_FORMATS["qwen3"],
    )


@pytest.fixture
def rig(model: TextModel) -> EdgeRig:
    rig = EdgeRig(model, max_model_len=4096)
    rig.connect()
    return rig


def ask(rig: EdgeRig, **fields: Any) -> NewRequest:
    params = fields.pop("params", SamplingParams(max_tokens=None))
    defaults: dict[str, Any] = {"messages": CHAT, "parse_output": True, "tools": TOOLS}
    return rig.generate(sampling_params=params, **{**defaults, **fields})


def answer(chunks: list[Any]) -> CompletionOutput:
    """What the client library makes of the chunks."""
    assembly = RequestAssembly("r", 1, None)
    for chunk in chunks:
        assert isinstance(chunk, GenerateChunk), chunk
        assembly.add(chunk)
    return assembly.output.outputs[0]


def say(rig: EdgeRig, admitted: NewRequest, text: str, finish: int) -> CompletionOutput:
    """The model says this, byte by byte, then its end token if it stops."""
    ids = rig.model.tokenizer.encode(text, add_special_tokens=False)
    if finish == FINISH_STOP:
        ids.append(next(iter(rig.model.end_ids)))
    rig.run(admitted, ids, finish)
    return answer(rig.take())


@pytest.mark.parametrize("stream", [True, False])
def test_calls_come_apart_from_the_text(rig: EdgeRig, stream: bool) -> None:
    sample = say(rig, ask(rig, stream=stream), f"<think>Hm.</think>{TWO_CALLS}", FINISH_STOP)
    assert sample.finish_reason == "tool_calls"
    assert (sample.reasoning, sample.text) == ("Hm.", "I look.")
    assert [(call.name, call.arguments) for call in sample.tool_calls] == [
        ("get_weather", WEATHER),
        ("run", NESTED),
    ]
    ids = [call.id for call in sample.tool_calls]
    assert len(set(ids)) == 2
    assert all(len(each) == 29 and each.startswith("call_") for each in ids)


def test_arguments_stream_as_they_come(rig: EdgeRig) -> None:
    admitted = ask(rig)
    text = f'<tool_call>{{"name": "run", "arguments": {NESTED[:30]}'
    ids = rig.model.tokenizer.encode(text, add_special_tokens=False)
    start = len(admitted.prompt_token_ids) // 4
    for place, token_id in enumerate(ids):
        rig.step((admitted.request_id, start + place, [token_id], 0))
    assert answer(rig.take()).tool_calls[0].arguments == NESTED[:30]


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_cut_off_by_max_tokens_ends_with_length(rig: EdgeRig, stream: bool) -> None:
    for length in range(1, len(TWO_CALLS), 7):
        sample = say(rig, ask(rig, stream=stream), TWO_CALLS[:length], FINISH_LENGTH)
        assert sample.finish_reason == "length"


def test_streamed_and_whole_answers_agree_wherever_they_are_cut(rig: EdgeRig) -> None:
    for length in range(1, len(TWO_CALLS)):
        finish = FINISH_LENGTH if length % 2 else FINISH_STOP
        whole, streamed = [
            say(rig, ask(rig, stream=stream), TWO_CALLS[:length], finish)
            for stream in (False, True)
        ]
        for call in (*whole.tool_calls, *streamed.tool_calls):
            call.id = ""  # of two requests
        assert whole == streamed


def test_a_stop_string_inside_a_call_keeps_what_came_before(rig: EdgeRig) -> None:
    params = SamplingParams(max_tokens=None, stop=["deep"])
    admitted = ask(rig, params=params)
    ids = rig.model.tokenizer.encode(TWO_CALLS, add_special_tokens=False)
    rig.run(admitted, ids, FINISH_LENGTH)
    sample = answer(rig.take())
    assert (sample.finish_reason, sample.stop_reason, sample.text) == ("stop", "deep", "I look.")
    assert sample.tool_calls[1].arguments == NESTED[: NESTED.index("deep")]
    assert rig.take_ring(AbortRequest)


def test_a_stop_string_is_looked_for_with_markers_around(rig: EdgeRig) -> None:
    params = SamplingParams(max_tokens=None, stop=["</t", "\n\n"])
    sample = say(rig, ask(rig, params=params), "<think>a</think>b</thin>", FINISH_LENGTH)
    assert (sample.reasoning, sample.text, sample.stop_reason) == ("a", "", "</t")


def test_without_parse_output_the_text_is_as_it_was(rig: EdgeRig) -> None:
    admitted = ask(rig, parse_output=False)
    sample = say(rig, admitted, TWO_CALLS, FINISH_STOP)
    assert (sample.text, sample.tool_calls, sample.finish_reason) == (TWO_CALLS, [], "stop")


def test_tools_that_may_not_be_called_are_not_shown(rig: EdgeRig) -> None:
    def prompt(**fields: Any) -> str:
        admitted = ask(rig, **fields)
        return rig.model.tokenizer.decode(unpack_ids(admitted.prompt_token_ids), False)

    assert "get_weather" in prompt(client_request_id="a")
    assert "get_weather" not in prompt(client_request_id="b", tool_choice="none")


def test_calls_are_text_where_none_may_come(rig: EdgeRig) -> None:
    sample = say(rig, ask(rig, tool_choice="none"), TWO_CALLS, FINISH_STOP)
    assert (sample.text, sample.tool_calls, sample.finish_reason) == (TWO_CALLS, [], "stop")


def test_one_call_is_enough_where_calls_may_not_be_parallel(rig: EdgeRig) -> None:
    sample = say(rig, ask(rig, parallel_tool_calls=False), TWO_CALLS, FINISH_STOP)
    assert [call.name for call in sample.tool_calls] == ["get_weather"]
    assert sample.finish_reason == "tool_calls"
    (abort,) = rig.take_ring(AbortRequest)
    assert abort.reason == "stop", "the model need not say the rest"


def test_a_prompt_that_opens_the_reasoning(rig: EdgeRig) -> None:
    admitted = ask(rig, chat_template_kwargs={"thinks": True}, tools=None)
    sample = say(rig, admitted, "Hm.\n</think>\n\nYes.", FINISH_STOP)
    assert (sample.reasoning, sample.text, sample.finish_reason) == ("Hm.", "Yes.", "stop")


def test_a_sample_knows_where_its_answer_begins(rig: EdgeRig) -> None:
    admitted = ask(rig)
    sample = rig.edge._book.samples[admitted.request_id]
    assert sample.thinks
    start = len(admitted.prompt_token_ids) // 4
    seen = []
    for place, token_id in enumerate(b"<think>a</think>b"):
        rig.step((admitted.request_id, start + place, [token_id], 0))
        seen.append(sample.thinks)
    assert seen == [True] * 15 + [False] * 2
    assert sample.num_reasoning_tokens == 15


def test_a_continued_message_goes_on_where_it_was(rig: EdgeRig) -> None:
    for begun, reasoning, text in (
        ("<think>H", "m.", "Yes."),
        ("<think>Hm.</think>\nY", "", "es."),
    ):
        messages = [*CHAT, {"role": "assistant", "content": begun}]
        admitted = ask(rig, messages=messages, continue_final_message=True, tools=None)
        said = "m.\n</think>\n\nYes." if reasoning else "es."
        sample = say(rig, admitted, said, FINISH_STOP)
        assert (sample.reasoning, sample.text) == (reasoning, text)


def test_special_tokens_of_the_format_reach_the_parser_and_no_others(rig: EdgeRig) -> None:
    plain = rig.model
    form = replace(TOOL_FORMATS["hermes"], markers=("<|im_start|>",))
    model = replace(plain, tool_format=form, reasoning_format=None)
    rig.edge.on_model(model)
    tokenizer = plain.tokenizer
    start, other = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|endoftext|>")
    assert start is not None
    assert other is not None
    admitted = ask(rig)
    rig.run(admitted, [*b"a", start, other, *b"b"], FINISH_LENGTH)
    assert answer(rig.take()).text == "a<|im_start|>b"
    admitted = ask(rig, tools=None)
    rig.run(admitted, [*b"a", start, other, *b"b"], FINISH_LENGTH)
    assert answer(rig.take()).text == "ab"


def test_ids_of_calls_do_not_change_when_the_text_is_read_again(model: TextModel) -> None:
    found = []
    for _ in range(2):
        rig = EdgeRig(model, max_model_len=4096)
        rig.connect()
        found.append([call.id for call in say(rig, ask(rig), TWO_CALLS, FINISH_STOP).tool_calls])
    assert found[0] == found[1]


def test_a_template_without_tools_gets_them_in_words(text_model: TextModel) -> None:
    rig = EdgeRig(text_model, max_model_len=4096)
    rig.connect()
    messages = [
        *CHAT,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "run", "arguments": NESTED}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    admitted = ask(rig, messages=messages)
    prompt = text_model.tokenizer.decode(unpack_ids(admitted.prompt_token_ids), True)
    assert '{"name": "get_weather", "parameters": {"type": "object"}}' in prompt
    assert json.dumps([{"name": "run", "arguments": json.loads(NESTED)}]) in prompt
    assert "Result of run: done" in prompt
    sample = say(rig, admitted, '[{"name": "run", "arguments": {}}]', FINISH_STOP)
    assert (sample.finish_reason, sample.tool_calls[0].name) == ("tool_calls", "run")


def test_an_answer_goes_on_at_another_edge_wherever_it_was_cut(model: TextModel) -> None:
    text = f"<think>Hm, é.</think>{TWO_CALLS}"
    ids = [*model.tokenizer.encode(text, add_special_tokens=False), next(iter(model.end_ids))]
    rigs = [EdgeRig(model, epoch=epoch, max_model_len=4096) for epoch in (1, 2)]
    for rig in rigs:
        rig.connect()
    whole = say(rigs[0], ask(rigs[0]), text, FINISH_STOP)
    for cut in range(0, len(ids), 3):
        params = SamplingParams(max_tokens=None, seed=1)
        request = Resumable(
            GenerateRequest(
                client_request_id=f"c{cut}",
                messages=CHAT,
                parse_output=True,
                tools=TOOLS,
                sampling_params=params,
            ),
            0,
        )
        chunks: list[GenerateChunk] = []
        for life, rig in enumerate(rigs):
            rig.send(1, request.again(ConnectionLost("lost"), 0) if life else request.request)
            (admitted,) = rig.take_ring(NewRequest)
            start = len(admitted.prompt_token_ids) // 4
            for place in range(cut if life else 0, len(ids) if life else cut):
                code = FINISH_STOP if place == len(ids) - 1 else 0
                rig.step((admitted.request_id, start + place, [ids[place]], code))
            for chunk in rig.take():
                request.note(chunk)
                chunks.append(chunk)
        got = answer(chunks)
        assert (got.text, got.reasoning) == (whole.text, whole.reasoning)
        assert got.finish_reason == whole.finish_reason
        calls = [(call.name, call.arguments) for call in got.tool_calls]
        assert calls == [(call.name, call.arguments) for call in whole.tool_calls]
