"""Tools for models whose chat template knows none: said in words, and answered as plain JSON."""

import json
from typing import Any, Final

from pillion.actors.detokenizer.chat_messages import Chat

_INSTRUCTION: Final = (
    "You may call functions. To call some, answer with a JSON list and nothing else:\n"
    '[{"name": <name of the function>, "arguments": <object with its arguments>}, ...]\n'
    "The functions are:"
)


def spelled_out(messages: Chat, tools: list[dict[str, Any]] | None) -> Chat:
    """The chat with its tools, calls and results as text of the usual roles."""
    names = _names_by_id(messages)
    plain = [_plain(message, names) for message in messages]
    if not tools:
        return plain
    text = "\n".join([_INSTRUCTION, *(_encoded(tool.get("function", tool)) for tool in tools)])
    if plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _plain(message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    if message["role"] == "tool":
        name = names.get(str(message.get("tool_call_id")), "the function")
        return {"role": "user", "content": f"Result of {name}: {message['content']}"}
    if not message.get("tool_calls"):
        return message
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message["tool_calls"]
    ]
    content = f"{message['content']}\n{_encoded(calls)}".lstrip("\n")
    return {"role": message["role"], "content": content}


def _names_by_id(messages: Chat) -> dict[str, str]:
    return {
        str(call.get("id")): call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }


def _encoded(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
