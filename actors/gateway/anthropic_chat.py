"""Anthropic's conversations as chats of the client protocol."""

from typing import Any

import msgspec

from pillion.actors.gateway.anthropic_requests import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicToolChoice,
    ConversationFields,
)
from pillion.actors.gateway.http_errors import invalid, unsupported

Message = dict[str, Any]


def chat_messages(request: ConversationFields) -> list[Message]:
    """The conversation with its system prompt in front. Raises HttpError 400."""
    messages: list[Message] = []
    if request.system:
        messages.append({"role": "system", "content": _text("system", request.system)})
    for index, message in enumerate(request.messages):
        messages += _turn(f"messages[{index}]", message)
    return messages


def continues(request: ConversationFields) -> bool:
    """Whether the last message is the beginning of the answer."""
    return bool(request.messages) and request.messages[-1].role == "assistant"


def chat_tools(tools: list[AnthropicTool] | None) -> list[dict[str, Any]] | None:
    """The tools as chat templates know them. Raises HttpError 400 for those that a server runs."""
    if not tools:
        return None
    return [_tool(index, tool) for index, tool in enumerate(tools)]


def chat_tool_choice(choice: AnthropicToolChoice | None) -> str | dict[str, Any] | None:
    """The choice in the words of the client protocol. Raises HttpError 400."""
    match choice:
        case None:
            return None
        case AnthropicToolChoice(type="any"):
            return "required"
        case AnthropicToolChoice(type="tool", name=str(name)):
            return {"type": "function", "function": {"name": name}}
        case AnthropicToolChoice(type="tool"):
            raise invalid('tool_choice.name is needed with the type "tool"', "tool_choice")
        case _:
            return choice.type


def _tool(index: int, tool: AnthropicTool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise unsupported(
            "tools",
            f"tools[{index}] of type {tool.type!r:.80} would run on the server, which runs none",
        )
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _turn(place: str, message: AnthropicMessage) -> list[Message]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant(place, message.content)]
    return _user(place, message.content)


def _user(place: str, blocks: list[dict[str, Any]]) -> list[Message]:
    """Results of calls first, each a message of its own, then the text."""
    messages: list[Message] = []
    texts: list[str] = []
    for number, block in enumerate(blocks):
        at = f"{place}.content[{number}]"
        if block.get("type") == "tool_result":
            content = block.get("content") or ""
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": _string(at, block, "tool_use_id"),
                    "content": _text(f"{at}.content", content),
                }
            )
        else:
            texts.append(_block_text(at, block))
    if texts or not messages:
        messages.append({"role": "user", "content": "\n".join(texts)})
    return messages


def _assistant(place: str, blocks: list[dict[str, Any]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        at = f"{place}.content[{number}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(_string(at, block, "thinking"))
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case "tool_use":
                calls.append(_call(at, block))
            case _:
                texts.append(_block_text(at, block))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(place: str, block: dict[str, Any]) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise invalid(f"{place}.input must be an object, got {arguments!r:.80}", "messages")
    name, call_id = _string(place, block, "name"), _string(place, block, "id")
    encoded = msgspec.json.encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": encoded}}


def _text(place: str, content: Any) -> str:
    """The text of a text or of blocks that are all text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(
            f"{place} must be a text or a list of blocks, got {content!r:.80}", "messages"
        )
    return "\n".join(_block_text(f"{place}[{number}]", each) for number, each in enumerate(content))


def _block_text(place: str, block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else type(block).__name__
    if kind != "text":
        raise unsupported(
            "messages",
            f"{place} is a block of type {kind!r:.80}, of which this server reads none there",
        )
    return _string(place, block, "text")


def _string(place: str, block: dict[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{place}.{name} must be a string, got {value!r:.80}", "messages")
    return value
