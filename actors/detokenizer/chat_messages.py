"""Messages of a chat in the form in which templates expect them."""

import json
from typing import Any

from pillion.runtime.errors import InvalidRequest

Chat = list[dict[str, Any]]


class CallArguments(dict[str, Any]):
    """Arguments of an earlier call: an object, which some templates encode and others join as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def flat_messages(messages: Chat) -> Chat:
    """The messages with content as text. Raises InvalidRequest naming the message that is none."""
    if not messages:
        raise InvalidRequest(
            "messages must hold at least one message, got an empty list", "messages"
        )
    flat: Chat = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequest(
                f"messages[{index}].role must be a non-empty string, got {role!r:.80}", "messages"
            )
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": _joined_parts(index, content)}
        elif content is None:
            if not message.get("tool_calls"):
                raise InvalidRequest(f"messages[{index}] has no content", "messages")
            message = {**message, "content": ""}
        elif not isinstance(content, str):
            raise InvalidRequest(
                f"messages[{index}].content must be a string or a list of parts, got {content!r:.80}",
                "messages",
            )
        if message.get("tool_calls") is not None:
            message = {**message, "tool_calls": _calls(index, message["tool_calls"])}
        if message.get("reasoning") and not message.get("reasoning_content"):
            message = {**message, "reasoning_content": message["reasoning"]}  # as templates call it
        flat.append(message)
    return flat


def _calls(index: int, calls: Any) -> list[dict[str, Any]]:
    """Earlier calls with their arguments as objects."""
    place = f"messages[{index}].tool_calls"
    if not isinstance(calls, list):
        raise InvalidRequest(f"{place} must be a list, got {calls!r:.80}", "messages")
    found = []
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f'{place}[{number}] must have an object "function" with a name, got {call!r:.80}',
                "messages",
            )
        arguments = _arguments(function.get("arguments"))
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def _arguments(arguments: Any) -> Any:
    """An object, or as it is what is none: a model may have written anything, and its chat goes on."""
    if isinstance(arguments, str | None):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
    return CallArguments(arguments) if isinstance(arguments, dict) else arguments


def _joined_parts(index: int, parts: list[Any]) -> str:
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f"messages[{index}].content has a part of type {kind!r:.80}; this model takes parts of type"
                ' "text" with a string in "text"',
                "messages",
            )
        texts.append(text)
    return "\n".join(texts)
