"""What a request says of tools: which functions there are, and whether the model may or must call one."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from pillion.messages.text import GenerateRequest
from pillion.runtime.errors import InvalidRequest

MAX_TOOLS: Final = 1024
MAX_NAME_CHARS: Final = 256
# Small models that may go on calling do so for ever.
MAX_FORCED_CALLS: Final = 32

Choice = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Checked tools of a request."""

    choice: Choice = "none"
    functions: tuple[dict[str, Any], ...] = ()  # the one that is named, or all
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        """The names of the functions."""
        return frozenset(function["name"] for function in self.functions)

    @property
    def may_be_strict(self) -> bool:
        """Whether the model may call a function that it must then call as the schema says."""
        return self.choice == "auto" and any(each.get("strict") for each in self.functions)

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """What the answer must look like; None if it is free."""
        if self.choice == "named":
            return _parameters(self.functions[0])
        if self.choice != "required":
            return None
        return {
            "type": "array",
            "items": {
                "anyOf": [_call_schema(*entry) for entry in enumerate(self.functions)],
            },
            "minItems": 1,
            "maxItems": MAX_FORCED_CALLS if self.parallel else 1,
        }


def read_tool_use(request: GenerateRequest) -> ToolUse:
    """The tools of a request. Raises InvalidRequest naming what is wrong with them."""
    functions = [_function(index, tool) for index, tool in enumerate(request.tools or ())]
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools takes at most {MAX_TOOLS} tools, got {len(functions)}", "tools"
        )
    names = [function["name"] for function in functions]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools has two functions of one name", "tools")
    choice, name = _choice(request.tool_choice, bool(functions))
    if choice == "none":
        return ToolUse()
    if not functions:
        raise InvalidRequest(f"tool_choice {choice!r} needs tools", "tool_choice")
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            raise InvalidRequest(
                f"tool_choice names {name!r:.80}, which is not in tools", "tool_choice"
            )
    return ToolUse(choice, tuple(functions), request.parallel_tool_calls)


def as_told(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as its model is told of it: that it is strict is between client and server."""
    function = tool.get("function")
    if not isinstance(function, dict) or "strict" not in function:
        return tool
    return {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}


def _function(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    kind, function = tool.get("type"), tool.get("function")
    if kind != "function" or not isinstance(function, dict):
        raise InvalidRequest(
            f'tools[{index}] must have the type "function" and an object "function", got {tool!r:.80}',
            "tools",
        )
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise InvalidRequest(
            f"tools[{index}].function.name must have 1 to {MAX_NAME_CHARS} characters, got {name!r:.80}",
            "tools",
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(
            f"tools[{index}].function.parameters must be a JSON schema, got {parameters!r:.80}",
            "tools",
        )
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequest(
            f"tools[{index}].function.strict must be true or false, got {function['strict']!r:.80}",
            "tools",
        )
    return function


def _choice(choice: str | dict[str, Any] | None, has_tools: bool) -> tuple[Choice, str | None]:
    match choice:
        case None:
            return ("auto" if has_tools else "none"), None
        case "none" | "required":
            return choice, None
        case "auto":
            return ("auto" if has_tools else "none"), None
        case {"type": "function", "function": {"name": str(name)}}:
            return "named", name
        case _:
            raise InvalidRequest(
                'tool_choice must be "none", "auto", "required" or {"type": "function", "function":'
                f' {{"name": ...}}}}, got {choice!r:.80}',
                "tool_choice",
            )


def _parameters(function: dict[str, Any]) -> dict[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}}


def _call_schema(index: int, function: dict[str, Any]) -> dict[str, Any]:
    place = f"/items/anyOf/{index}/properties/arguments"
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(_parameters(function), place),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """The schema with references that still hit when it stands at this place of another."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#{place}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }
