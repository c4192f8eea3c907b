"""The forms in which a user may give a prompt, or many."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypedDict, TypeGuard

from pillion.messages.codec import pack_ids
from pillion.messages.value_checks import MAX_TOKEN_ID
from pillion.runtime.errors import InvalidRequest

Messages = list[dict[str, Any]]


class TextPrompt(TypedDict, total=False):
    """A prompt as a dict: exactly one of the first three keys."""

    prompt: str
    prompt_token_ids: list[int]
    messages: Messages
    cache_salt: str


OnePrompt = str | list[int] | TextPrompt
ManyPrompts = list[str] | list[list[int]] | list[TextPrompt] | list[OnePrompt]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; exactly one of text, token_ids (packed int32) and messages is set."""

    text: str | None = None
    token_ids: bytes | None = None
    messages: Messages | None = None
    cache_salt: str | None = None


def collect_prompts(
    prompts: Any = None, prompt_token_ids: Any = None, messages: Any = None
) -> tuple[list[Prompt], bool]:
    """The prompts of a call that was given exactly one of these, and whether it was given many.

    Raises InvalidRequest.
    """
    given = [value for value in (prompts, prompt_token_ids, messages) if value is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"exactly one of prompts, prompt_token_ids and messages is needed, got {len(given)}",
            "prompts",
        )
    if messages is not None:
        if not is_conversation_batch(messages):
            return [parse_messages(messages)], False
        return parse_prompts([{"messages": conversation} for conversation in messages]), True
    if is_batch(given[0]):
        return parse_prompts(given[0]), True
    return [parse_prompt(given[0])], False


def is_batch(prompts: Any) -> bool:
    """Whether these are many prompts: any sequence but a string, a dict or token ids."""
    if isinstance(prompts, str) or _is_token_ids(prompts) or isinstance(prompts, bytes | Mapping):
        return False
    return isinstance(prompts, Sequence) or hasattr(prompts, "tolist")


def parse_prompts(prompts: Any) -> list[Prompt]:
    """A batch of prompts. Raises InvalidRequest naming the index of the first that makes no sense."""
    values = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    parsed = []
    for index, value in enumerate(values):
        try:
            parsed.append(parse_prompt(value))
        except InvalidRequest as error:
            raise InvalidRequest(f"prompt {index}: {error}", error.param) from error
    return parsed


def parse_prompt(prompt: Any) -> Prompt:
    """One prompt: text, token ids, or a dict with "prompt", "prompt_token_ids" or "messages".

    Raises InvalidRequest. An empty prompt is left to the daemon, which knows whether the model adds
    a token in front.
    """
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if type(prompt) is list:
        return Prompt(token_ids=pack_token_ids(prompt))
    if isinstance(prompt, Mapping):
        return _from_dict(prompt)
    if hasattr(prompt, "tolist") or (
        isinstance(prompt, Sequence) and not isinstance(prompt, bytes)
    ):
        return Prompt(token_ids=pack_token_ids(prompt))
    raise InvalidRequest(
        "a prompt is a string, a list of token ids or a dict with 'prompt', 'prompt_token_ids' or"
        f" 'messages'; got {type(prompt).__name__}",
        "prompt",
    )


def parse_messages(messages: Any) -> Prompt:
    """A conversation: a list of dicts with "role" and "content". Raises InvalidRequest."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequest(
            f"messages must be a list of messages, got {type(messages).__name__}", "messages"
        )
    if not messages:
        raise InvalidRequest("messages is empty: a conversation has at least one", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"messages[{index}] must be a dict with 'role' and 'content', got {message!r:.80}",
                "messages",
            )
    return Prompt(messages=[dict(message) for message in messages])


def is_conversation_batch(messages: Any) -> bool:
    """Whether these are many conversations (lists of lists of messages)."""
    return (
        isinstance(messages, Sequence)
        and not isinstance(messages, str | bytes)
        and len(messages) > 0
        and all(
            isinstance(item, Sequence) and not isinstance(item, str | bytes) for item in messages
        )
    )


def pack_token_ids(values: Any, name: str = "prompt_token_ids") -> bytes:
    """The field's token ids as packed int32. Raises InvalidRequest for anything that no vocabulary can hold."""
    if hasattr(values, "tolist"):  # numpy arrays and torch tensors, which need not be installed
        values = values.tolist()
    if type(values) is not list and (
        not isinstance(values, Iterable) or isinstance(values, str | bytes)
    ):
        raise InvalidRequest(f"{name} must be a list of integers, got {values!r:.80}", name)
    values = list(values)
    try:
        # The common case without a Python loop: a prompt may have a hundred thousand tokens.
        if bool not in set(map(type, values)) and min(values, default=0) >= 0:
            return pack_ids(values)
    except (TypeError, OverflowError):
        pass
    return pack_ids([_checked_token_id(value, name) for value in values])


def _checked_token_id(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidRequest(f"{name} must be a list of integers, got {value!r:.80} in it", name)
    token_id = int(value)
    if not 0 <= token_id <= MAX_TOKEN_ID:
        raise InvalidRequest(
            f"{name} takes token ids from 0 to {MAX_TOKEN_ID}, inside the vocabulary, got {token_id}",
            name,
        )
    return token_id


def _from_dict(prompt: Mapping[str, Any]) -> Prompt:
    unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids", "messages", "cache_salt"})
    if unknown:
        raise InvalidRequest(
            f"a prompt dict takes prompt, prompt_token_ids, messages and cache_salt, not {unknown[0]!r:.80}",
            str(unknown[0]),
        )
    forms = [
        name for name in ("prompt_token_ids", "messages", "prompt") if prompt.get(name) is not None
    ]
    # vLLM's own dicts may carry the text beside its token ids: the ids count.
    if not forms or ("messages" in forms and len(forms) > 1):
        raise InvalidRequest(
            "a prompt dict needs exactly one of 'prompt', 'prompt_token_ids' and 'messages', got"
            f" {sorted(prompt)}",
            "prompt",
        )
    salt = prompt.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequest(f"cache_salt must be a string, got {salt!r:.80}", "cache_salt")
    if forms[0] == "messages":
        return Prompt(messages=parse_messages(prompt["messages"]).messages, cache_salt=salt)
    if forms[0] == "prompt_token_ids":
        return Prompt(token_ids=pack_token_ids(prompt["prompt_token_ids"]), cache_salt=salt)
    if not isinstance(prompt["prompt"], str):
        raise InvalidRequest(f"prompt must be a string, got {prompt['prompt']!r:.80}", "prompt")
    return Prompt(text=prompt["prompt"], cache_salt=salt)


def _is_token_ids(value: Any) -> TypeGuard[Sequence[int]]:
    if type(value) is list and value and type(value[0]) is int:
        return True  # to ask for abstract classes takes longer than all the rest
    if hasattr(value, "ndim"):
        return bool(value.ndim == 1)
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and len(value) > 0
        and isinstance(value[0], Integral)
    )
