"""The fields with which clients give the form of an answer, and what the daemon hears of them."""

import json
from typing import Any

import msgspec
import pytest
from gateway_rig import GatewayRig

from pillion.actors.gateway.http_errors import HttpError
from pillion.actors.gateway.openai_requests import CompletionRequest
from pillion.actors.gateway.structure_fields import structure_of
from pillion.messages.structured_outputs import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SCHEMA_TEXT = msgspec.json.encode(SCHEMA).decode()


def read(**fields: Any) -> StructuredOutputsParams | None:
    return structure_of(msgspec.convert({"prompt": "a", **fields}, CompletionRequest))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {}}, None),
        (
            {"response_format": {"type": "json_object"}},
            StructuredOutputsParams(json_object=True),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            StructuredOutputsParams(json=SCHEMA_TEXT),
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            StructuredOutputsParams(json=SCHEMA_TEXT, disable_any_whitespace=True),
        ),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutputsParams(regex="a+")),
        ({"guided_json": SCHEMA}, StructuredOutputsParams(json=SCHEMA_TEXT)),
        ({"guided_json": SCHEMA_TEXT}, StructuredOutputsParams(json=SCHEMA_TEXT)),
        ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
        ({"guided_choice": ["a"]}, StructuredOutputsParams(choice=["a"])),
        ({"guided_grammar": "start: X"}, StructuredOutputsParams(grammar="start: X")),
    ],
    ids=str,
)
def test_all_names_mean_the_same(
    fields: dict[str, Any], expected: StructuredOutputsParams | None
) -> None:
    assert read(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
        ({"response_format": {"json_schema": {"schema": {}}}}, "response_format", "type must be"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "hello"}}},
            "response_format",
            "hello",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "regex"),
        (
            {"structured_outputs": {"structural_tag": "a"}},
            "structured_outputs",
            "no field 'structural_tag'",
        ),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "choice"),
        ({"structured_outputs": {"choice": "yes"}}, "structured_outputs", "got 'yes'"),
        ({"guided_choice": [""]}, "guided_choice", "^guided_choice takes"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "exclude"),
    ],
    ids=str,
)
def test_contradictions_are_refused(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(HttpError, match=said) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
async def test_a_schema_of_any_depth_is_answered(rig: GatewayRig, field: str) -> None:
    schema = '{"items":' * 2000 + "{}" + "}" * 2000
    outer = {
        "response_format": {"type": "json_schema", "json_schema": {"schema": "HERE"}},
        "structured_outputs": {"json": "HERE"},
    }
    body = json.dumps(
        {"messages": [{"role": "user", "content": "word"}], field: outer[field]}
    ).replace('"HERE"', schema)
    client = await rig.client()
    answer = await client.ask("POST", "/v1/chat/completions", body.encode())
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("structured_outputs", {"json_object": True}),
        ("guided_json", {"type": "object"}),
    ],
)
async def test_a_refusal_names_the_field_that_was_used(
    rig: GatewayRig, field: str, value: Any
) -> None:
    for answer in (
        await rig.chat("BAD_GRAMMAR", **{field: value}),
        await rig.complete("BAD_GRAMMAR", **{field: value}),
    ):
        assert (answer.status, answer.error["param"]) == (400, field)
    assert [request.sampling_params is not None for request in rig.edge.requests] == [True, True]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "prompt", "asked", "param"),
    [
        ("chat/completions", "messages", {"guided_regex": "a"}, "guided_regex"),
        ("completions", "prompt", {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ("responses", "input", {"text": {"format": {"type": "json_object"}}}, "text"),
    ],
)
async def test_a_grammar_that_fails_later_is_the_requests_fault(
    rig: GatewayRig, path: str, prompt: str, asked: dict[str, Any], param: str, stream: bool
) -> None:
    said = [{"role": "user", "content": "OUTGROW"}] if prompt == "messages" else "OUTGROW"
    answer = await rig.post(f"/v1/{path}", {prompt: said, "stream": stream, **asked})
    assert answer.status == (200 if stream else 400)
    assert b"invalid_request" in answer.body
    assert f"{param}: too many items".encode() in answer.body
    assert (await rig.chat("word")).status == 200
