"""What a request says of tools, and the schema that forced calls follow."""

from typing import Any

import pytest

from pillion.actors.detokenizer.tool_use import MAX_FORCED_CALLS, ToolUse, as_told, read_tool_use
from pillion.messages.text import GenerateRequest
from pillion.runtime.errors import InvalidRequest

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"to": {"$ref": "#/$defs/place"}, "of": {"$ref": "#"}},
    "$defs": {"place": {"type": "string"}},
}
F: dict[str, Any] = {"name": "f", "parameters": PARAMETERS}
G: dict[str, Any] = {"name": "g"}
TOOLS = [{"type": "function", "function": each} for each in (F, G)]


def use(**fields: Any) -> ToolUse:
    return read_tool_use(GenerateRequest(client_request_id="r", messages=[], **fields))


def test_the_choice_is_free_unless_said() -> None:
    assert use() == ToolUse("none")
    assert use(tools=TOOLS) == ToolUse("auto", (F, G))
    assert use(tool_choice="auto") == ToolUse("none")
    assert use(tools=TOOLS, tool_choice="none") == ToolUse("none")
    assert use(tools=TOOLS, parallel_tool_calls=False) == ToolUse("auto", (F, G), False)
    assert use(tools=TOOLS).json_schema is None


def test_strict_is_a_matter_of_calls_that_may_come() -> None:
    strict = {"type": "function", "function": {**F, "strict": True}}
    assert not use(tools=TOOLS).may_be_strict
    assert use(tools=[strict, TOOLS[1]]).may_be_strict
    assert not use(tools=[strict], tool_choice="required").may_be_strict, "they hold in any case"
    assert as_told(strict) == TOOLS[0]
    with pytest.raises(InvalidRequest, match=r"tools\[0\].function.strict must be true or false"):
        use(tools=[{"type": "function", "function": {**F, "strict": "yes"}}])


def test_a_named_function_gets_its_own_schema() -> None:
    for function, schema in ((F, PARAMETERS), (G, {"type": "object", "properties": {}})):
        choice = {"type": "function", "function": {"name": function["name"]}}
        named = use(tools=TOOLS, tool_choice=choice)
        assert named == ToolUse("named", (function,))
        assert named.json_schema == schema


def test_forced_calls_are_a_list_of_calls() -> None:
    schema = use(tools=TOOLS, tool_choice="required").json_schema
    assert schema is not None
    first, second = schema["items"]["anyOf"]
    assert schema["minItems"] == 1
    assert schema["maxItems"] == MAX_FORCED_CALLS
    assert first["properties"]["name"] == {"const": "f"}
    assert second["properties"] == {
        "name": {"const": "g"},
        "arguments": {"type": "object", "properties": {}},
    }
    single = use(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).json_schema
    assert single == {**schema, "maxItems": 1}


def test_references_inside_parameters_still_hit() -> None:
    schema = use(tools=TOOLS, tool_choice="required").json_schema
    assert schema is not None

    def hit(pointer: str) -> Any:
        found: Any = schema
        for part in pointer.removeprefix("#/").split("/"):
            found = found[int(part)] if isinstance(found, list) else found[part]
        return found

    arguments = schema["items"]["anyOf"][0]["properties"]["arguments"]
    assert hit(arguments["properties"]["to"]["$ref"]) == {"type": "string"}
    assert hit(arguments["properties"]["of"]["$ref"]) is arguments
