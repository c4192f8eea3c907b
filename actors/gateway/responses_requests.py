"""What clients may send to POST /v1/responses. A field that is null is as if left out."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta


class ResponseFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. Tools of other types are refused: the server runs none."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments")
    ] = None
    strict: Annotated[
        bool | None,
        Meta(
            description="arguments hold to the schema; those of calls that must come do in any case"
        ),
    ] = None


class ResponseReasoning(msgspec.Struct, frozen=True, kw_only=True):
    """How much the model shall think."""

    NO_EFFECT: ClassVar = frozenset(("summary",))

    effort: Annotated[
        str | None,
        Meta(description="a variable of the chat template; `none` also switches thinking off"),
    ] = None
    summary: Annotated[
        str | None, Meta(description="accepted, has no effect: reasoning comes whole")
    ] = None


class ResponseText(msgspec.Struct, frozen=True, kw_only=True):
    """What the text of the answer looks like."""

    NO_EFFECT: ClassVar = frozenset(("verbosity",))

    format: Annotated[
        dict[str, Any] | None,
        Meta(
            description='`{"type": "text"}`, `{"type": "json_object"}` or `{"type": "json_schema", "schema": ...}`'
        ),
    ] = None
    verbosity: Annotated[str | None, Meta(description="accepted, has no effect")] = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/responses."""

    input: Annotated[
        str | list[dict[str, Any]],
        Meta(
            description="a text, or the whole conversation as items of type `message`, `function_call`,"
            " `function_call_output` and `reasoning`"
        ),
    ]
    model: Annotated[
        str | None, Meta(description="the served name; anything else is answered with 404")
    ] = None
    instructions: Annotated[
        str | None, Meta(description="a system message in front of the conversation")
    ] = None
    stream: Annotated[
        bool | None, Meta(description="send server-sent events as the answer grows")
    ] = None
    max_output_tokens: Annotated[
        int | None,
        Meta(description="longest answer, cut to what fits; left out: to the end of the context"),
    ] = None
    temperature: Annotated[float | None, Meta(description="0 (greedy) to 100, 1 if left out")] = (
        None
    )
    top_p: float | None = None
    top_logprobs: Annotated[
        int | None,
        Meta(description="log-probabilities of so many likeliest tokens at each token, up to 64"),
    ] = None
    include: Annotated[
        list[str] | None,
        Meta(
            description="`message.output_text.logprobs` adds log-probabilities; others have no effect"
        ),
    ] = None
    tools: list[ResponseFunction] | None = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        Meta(
            description='`auto`, `none`, `required`, or `{"type": "function", "name": ...}`',
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: nothing follows the first call")
    ] = None
    reasoning: ResponseReasoning | None = None
    text: ResponseText | None = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="comes back as it is")] = None
    store: Annotated[
        bool | None, Meta(description="accepted; nothing is stored, and the answer says so")
    ] = None
    previous_response_id: Annotated[
        str | None, Meta(description="refused: nothing is stored, send the whole conversation")
    ] = None
    conversation: Annotated[Any, Meta(description="refused, likewise")] = None
    prompt: Annotated[Any, Meta(description="refused, likewise")] = None
    background: Annotated[bool | None, Meta(description="refused if true, likewise")] = None
    truncation: Annotated[
        str | None, Meta(description="refused unless `disabled`: send a shorter conversation")
    ] = None
