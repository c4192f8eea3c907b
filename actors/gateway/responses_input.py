"""Items of POST /v1/responses as chats of the client protocol."""

from typing import Any, Final

from pillion.actors.gateway.http_errors import invalid, unsupported
from pillion.actors.gateway.responses_requests import ResponseFunction, ResponsesRequest

Message = dict[str, Any]

_NOT_KEPT: Final = "this server keeps no responses: send the whole conversation as `input`"
_TEXT_PARTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def check_fields(request: ResponsesRequest) -> None:
    """Refuses what is not offered. Raises HttpError 400."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(request, name) is not None:
            raise unsupported(name, _NOT_KEPT)
    if request.background:
        raise unsupported("background", _NOT_KEPT)
    if request.truncation not in (None, "disabled"):
        raise unsupported("truncation", "nothing is left out of a conversation: send a shorter one")
    if request.input == []:
        raise invalid("input: the list is empty", "input")


def chat_messages(request: ResponsesRequest) -> list[Message]:
    """The conversation, instructions first. Raises HttpError 400."""
    messages: list[Message] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    for index, item in enumerate(request.input):
        _add_item(messages, f"input[{index}]", item)
    return messages


def chat_tools(tools: list[ResponseFunction] | None) -> list[dict[str, Any]] | None:
    """The tools as chat templates know them. Raises HttpError 400 for those that a server runs."""
    if not tools:
        return None
    found = []
    for index, tool in enumerate(tools):
        if tool.type != "function":
            reason = (
                f"tools[{index}] of type {tool.type!r:.80} would run on the server, which runs none"
            )
            raise unsupported("tools", reason)
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        if tool.strict:
            function["strict"] = True
        found.append({"type": "function", "function": function})
    return found


def chat_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """The choice in the words of the client protocol."""
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case _:
            return choice


def _add_item(messages: list[Message], place: str, item: dict[str, Any]) -> None:
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if not isinstance(role, str):
                raise invalid(f"{place}.role must be a string, got {role!r:.80}", "input")
            text = _text(f"{place}.content", item.get("content"))
            if role == "assistant":
                _assistant_turn(messages)["content"] += text
            else:
                messages.append({"role": role, "content": text})
        case "function_call":
            function = {
                "name": _string(place, item, "name"),
                "arguments": _string(place, item, "arguments"),
            }
            call = {"id": _string(place, item, "call_id"), "type": "function", "function": function}
            _assistant_turn(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            text = _text(f"{place}.output", item.get("output"))
            call_id = _string(place, item, "call_id")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            turn = _assistant_turn(messages)
            turn["reasoning"] = turn.get("reasoning", "") + _text(f"{place}.content", parts)
        case kind:
            raise unsupported(
                "input", f"{place} is of type {kind!r:.80}, which this server does not read"
            )


def _assistant_turn(messages: list[Message]) -> Message:
    """The assistant's turn at the end: its reasoning, words and calls are items of their own here."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(place: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{place} must be a text or a list of parts, got {content!r:.80}", "input")
    return "\n".join(_part(f"{place}[{index}]", part) for index, part in enumerate(content))


def _part(place: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "refusal":
        return _string(place, part, "refusal")
    if kind not in _TEXT_PARTS:
        raise unsupported(
            "input", f"{place} is of type {kind!r:.80}, which this server does not read"
        )
    return _string(place, part, "text")


def _string(place: str, item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{place}.{name} must be a string, got {value!r:.80}", "input")
    return value
