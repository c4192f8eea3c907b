"""Chats to prompts, by the template that the model's makers wrote."""

import re
from typing import Any, Final

import jinja2
from jinja2 import meta

from pillion.actors.detokenizer.chat_messages import Chat, flat_messages
from pillion.actors.detokenizer.chat_roles import roles_as_in
from pillion.actors.detokenizer.plain_tools import spelled_out
from pillion.actors.detokenizer.template_guard import GuardedEnvironment, TemplateLimitReached
from pillion.runtime.errors import InvalidRequest, RequestError

RENDER_LIMIT_S: Final = 2.0
# What the edge itself gives to a template; clients may not set these as template arguments.
RESERVED_NAMES: Final = frozenset(
    (
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "sep_token",
        "cls_token",
        "raise_exception",
        "strftime_now",
        "range",
        "namespace",
        "dict",
        "tokenize",
    )
)

# Some templates tell calls from texts by a content that is none, others fail at one.
_WANTS_NONE: Final = re.compile(r"""message(?:\.content|\[['"]content['"]\]) is none""")


class ChatTemplate:
    """A model's chat templates, or none. Safe to use from several threads."""

    def __init__(self, sources: dict[str, str], special_tokens: dict[str, str]) -> None:
        self._special_tokens = special_tokens
        self._environment = GuardedEnvironment()
        self._sources = sources
        self._compiled: dict[str, jinja2.Template] = {}
        self._takes_tools: dict[str, bool] = {}

    def __bool__(self) -> bool:
        """Whether the model has a template."""
        return bool(self._sources)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The model's special tokens by what they are for, such as "eos_token"."""
        return dict(self._special_tokens)

    @property
    def default(self) -> str | None:
        """The template of chats without tools."""
        return self._sources.get("default")

    @property
    def sources(self) -> list[str]:
        """The templates themselves."""
        return list(self._sources.values())

    def render(
        self,
        messages: Chat,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """The prompt for a chat.

        Raises InvalidRequest if the template refuses the messages or takes too much time or memory with
        them, RequestError "unsupported" if the model has no usable template.
        """
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        template = self._template(name)
        flat = roles_as_in(self._sources[name], flat_messages(messages))
        if not self._takes_tools[name]:
            flat, tools = spelled_out(flat, tools), None
        elif _WANTS_NONE.search(self._sources[name]):
            flat = [_without_empty_content(message) for message in flat]
        variables = template_variables(
            flat,
            self._special_tokens,
            add_generation_prompt and not continue_final_message,
            tools,
            arguments,
        )
        text = render_guarded(self._environment, template, variables)
        return continued(text, messages) if continue_final_message else text

    def variables(
        self,
        messages: Chat,
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None,
        arguments: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """What a template of the client's own is rendered with."""
        return template_variables(
            flat_messages(messages), self._special_tokens, add_generation_prompt, tools, arguments
        )

    def _template(self, name: str) -> jinja2.Template:
        template = self._compiled.get(name)
        if template is not None:
            return template
        source = self._sources.get(name)
        if source is None:
            raise RequestError(
                "this model has no chat template: send a `prompt`, or serve the model with `tokenizer` set"
                " to a directory that has one",
                "unsupported",
                "messages",
            )
        try:
            template = self._environment.from_string(source)
            names = meta.find_undeclared_variables(self._environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise RequestError(
                f"the model's chat template cannot be compiled: {error}", "unsupported", "messages"
            ) from error
        self._takes_tools[name] = "tools" in names or "tool_calls" in source
        self._compiled[name] = template
        return template


def template_variables(
    messages: Chat,
    special_tokens: dict[str, str],
    add_generation_prompt: bool,
    tools: list[dict[str, Any]] | None,
    arguments: dict[str, Any] | None,
) -> dict[str, Any]:
    """All that a template sees. Raises InvalidRequest for arguments that only the edge may set."""
    reserved = RESERVED_NAMES.intersection(arguments or ())
    if reserved:
        raise InvalidRequest(
            f"chat_template_kwargs may not set {', '.join(sorted(reserved))}",
            "chat_template_kwargs",
        )
    return {
        **special_tokens,
        **(arguments or {}),
        "messages": messages,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }


def continued(prompt: str, messages: Chat) -> str:
    """The prompt up to the end of the last message, so that the model goes on with that message."""
    content = flat_messages(messages[-1:])[0]["content"]
    kept = content.strip()
    at = prompt.rfind(kept)
    if not kept or at < 0:
        raise InvalidRequest(
            "continue_final_message needs a last message with text that the chat template repeats as it is",
            "continue_final_message",
        )
    # Some templates strip messages, others don't: what follows the text tells which this is.
    tail = content[len(content.rstrip()) - len(content) :] if content != content.rstrip() else ""
    end = at + len(kept)
    return prompt[: end + len(tail)] if prompt.startswith(tail, end) else prompt[:end]


def render_guarded(
    environment: GuardedEnvironment, template: jinja2.Template, variables: dict[str, Any]
) -> str:
    """Renders within the limits. Raises InvalidRequest saying what the template objected to."""
    try:
        return environment.render_within(template, variables, RENDER_LIMIT_S)
    except TemplateLimitReached as error:
        raise InvalidRequest(f"rendering the chat was stopped: {error}", "messages") from error
    except RecursionError as error:
        raise InvalidRequest(
            "the messages or the chat template are nested too deeply", "messages"
        ) from error
    # A template may trip over messages of an unexpected shape in any way that Python code can.
    except Exception as error:
        raise InvalidRequest(
            f"the chat template refused the messages: {str(error) or type(error).__name__:.500}",
            "messages",
        ) from error


def _without_empty_content(message: dict[str, Any]) -> dict[str, Any]:
    if message["content"] or "tool_calls" not in message:
        return message
    return {**message, "content": None}
