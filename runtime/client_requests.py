"""From what a caller writes to the messages of the client protocol, and from refusals to exceptions."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypedDict, TypeVar

import msgspec

from pillion.messages.codec import frame
from pillion.messages.ids import ErrorCode
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    MAX_FRAME_BYTES,
    MAX_PRIORITY,
    DetokenizeReply,
    DetokenizeRequest,
    EmbeddingChunk,
    GenerateChunk,
    GenerateRequest,
    RequestFailed,
    TokenizeReply,
    TokenizeRequest,
    TraceContext,
)
from pillion.messages.value_checks import shown
from pillion.runtime.clock import NS_PER_MS, NS_PER_S
from pillion.runtime.errors import InvalidRequest, RequestError
from pillion.runtime.prompts import Prompt, collect_prompts, pack_token_ids


class RequestOptions(TypedDict, total=False):
    """What may be said of a request beside its prompt and sampling parameters."""

    # Seconds; the daemon ends the request with finish_reason "timeout" then.
    timeout: float | None
    # Lower runs earlier.
    priority: int
    # Requests with different salts never share cached blocks.
    cache_salt: str
    # Whether the tokenizer's own special tokens go in front of a text prompt.
    add_special_tokens: bool
    # Whether a chat ends with the header of the assistant's turn.
    add_generation_prompt: bool
    # Whether the last message is left open, to be continued.
    continue_final_message: bool
    # A template in place of the model's; refused unless the daemon allows it.
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    tools: list[dict[str, Any]] | None
    return_prompt_token_ids: bool
    # Whether reasoning and tool calls of a chat come apart from the text.
    parse_output: bool
    # "auto", "none", "required", or {"type": "function", "function": {"name": ...}}; needs parse_output.
    tool_choice: str | dict[str, Any] | None
    # False: nothing follows the first call.
    parallel_tool_calls: bool
    # The span above this request, in W3C Trace Context's form; for a daemon that traces.
    traceparent: str


class TokenizeOptions(TypedDict, total=False):
    """What may be said of a text that is only tokenized; meanings as in RequestOptions."""

    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: dict[str, Any] | None
    tools: list[dict[str, Any]] | None


# The daemon ends a request at its deadline by itself; this much later the client stops waiting for that.
GUARD_S: Final = 10.0

_OPTION_NAMES: Final = frozenset(RequestOptions.__annotations__)
_ENCODER: Final = msgspec.msgpack.Encoder()
_CANNOT_BE_SENT: Final = (TypeError, OverflowError, ValueError, UnicodeEncodeError, RecursionError)


def check_options(options: RequestOptions) -> None:
    """Raises TypeError for a name that is no option, InvalidRequest for a timeout that makes no sense."""
    unknown = sorted(set(options) - _OPTION_NAMES)
    if unknown:
        raise TypeError(
            f"unexpected argument {unknown[0]!r}; the options of a request are"
            f" {', '.join(sorted(_OPTION_NAMES))}"
        )
    check_timeout("timeout", options.get("timeout"))


def check_sampling_params(params: SamplingParams | None) -> None:
    """Raises InvalidRequest: a SamplingParams may have been changed since it was made."""
    if params is None:
        return
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(
            f"sampling_params must be a SamplingParams, got {type(params).__name__}",
            "sampling_params",
        )
    try:
        params.verify()
    except ValueError as error:
        field = re.match(r"\w+", str(error))  # the message begins with it
        raise InvalidRequest(str(error), field and field[0]) from error


def params_of_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams | None]:
    """The sampling parameters of each prompt of a batch. Raises InvalidRequest naming the index."""
    if params is None or isinstance(params, SamplingParams):
        check_sampling_params(params)
        return [params] * num_prompts
    if not isinstance(params, Sequence):
        check_sampling_params(params)
    if len(params) != num_prompts:
        raise InvalidRequest(
            f"sampling_params must be one or as many as prompts ({num_prompts}), got {len(params)}",
            "sampling_params",
        )
    for index, one in enumerate(params):
        try:
            check_sampling_params(one)
        except InvalidRequest as error:
            raise InvalidRequest(f"prompt {index}: {error}", error.param) from error
    return list(params)


def generate_requests(
    new_id: Callable[[], str],
    prompts: Any,
    sampling_params: Any,
    prompt_token_ids: Any,
    messages: Any,
    options: RequestOptions,
    *,
    stream: bool,
) -> tuple[list[GenerateRequest], bool]:
    """The messages of a call, and whether it asks for many prompts (its answer then is a list).

    Raises InvalidRequest, and TypeError for arguments that do not exist.
    """
    check_options(options)
    parsed, many = collect_prompts(prompts, prompt_token_ids, messages)
    if stream and many:
        raise TypeError("stream=True takes one prompt; start one stream per prompt")
    params = params_of_each(sampling_params, len(parsed))
    return [
        generate_request(new_id(), prompt, one, options, stream=stream)
        for prompt, one in zip(parsed, params, strict=True)
    ], many


def generate_request(
    client_request_id: str,
    prompt: Prompt,
    params: SamplingParams | None,
    options: RequestOptions,
    *,
    stream: bool,
) -> GenerateRequest:
    """The message that asks for this prompt's text."""
    fields: dict[str, Any] = {
        name: value
        for name, value in options.items()
        if name not in ("timeout", "traceparent") and value is not None
    }
    if traceparent := options.get("traceparent"):
        fields["trace"] = TraceContext(traceparent=traceparent)
    timeout = options.get("timeout")
    if timeout is not None:
        fields["deadline_ms"] = max(1, int(timeout * 1000))
    if prompt.cache_salt is not None:
        fields["cache_salt"] = prompt.cache_salt
    return GenerateRequest(
        client_request_id=client_request_id,
        prompt=prompt.text,
        messages=prompt.messages,
        prompt_token_ids=prompt.token_ids,
        sampling_params=params,
        stream=stream,
        **fields,
    )


def tokenize_request(
    client_request_id: str, prompt: Any, messages: Any, options: TokenizeOptions
) -> TokenizeRequest:
    """The message that asks for the token ids of a text or a conversation. Raises InvalidRequest."""
    unknown = sorted(set(options) - set(TokenizeOptions.__annotations__))
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}")
    parsed, many = collect_prompts(prompt, None, messages)
    if many or parsed[0].token_ids is not None:
        raise InvalidRequest("tokenize takes one text or one conversation", "prompt")
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return TokenizeRequest(
        client_request_id=client_request_id,
        prompt=parsed[0].text,
        messages=parsed[0].messages,
        **fields,
    )


def detokenize_request(
    client_request_id: str, token_ids: Any, skip_special_tokens: bool
) -> DetokenizeRequest:
    """The message that asks for the text of token ids. Raises InvalidRequest."""
    pack_token_ids(token_ids, "token_ids")
    return DetokenizeRequest(
        client_request_id=client_request_id,
        token_ids=[int(token_id) for token_id in token_ids],
        skip_special_tokens=skip_special_tokens,
    )


def guard_ns(deadline_ms: int | None, now_ns: int) -> int | None:
    """When a client gives up on a request that was given so much time; None: never."""
    if deadline_ms is None:
        return None
    return now_ns + deadline_ms * NS_PER_MS + int(GUARD_S * NS_PER_S)


def no_answer(deadline_ms: int | None) -> RequestError:
    """What a caller is told when the guard time is over."""
    return RequestError(
        f"the daemon did not end the request within {GUARD_S:g} s of its deadline"
        f" ({(deadline_ms or 0) / 1000:g} s): see `pillion status`",
        "unavailable",
    )


def encode_frame(message: msgspec.Struct) -> bytes:
    """The frame of a message. Raises InvalidRequest for what cannot be sent."""
    try:
        payload = _ENCODER.encode(message)
    except _CANNOT_BE_SENT as error:
        raise _unsendable(message, error) from error
    if len(payload) > MAX_FRAME_BYTES:
        raise InvalidRequest(
            f"the request has {len(payload)} bytes and the protocol allows {MAX_FRAME_BYTES}"
        )
    return frame(payload)


def _unsendable(message: msgspec.Struct, error: Exception) -> InvalidRequest:
    """Why a message cannot be sent, and which field of it."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        try:
            _ENCODER.encode(value)
        except _CANNOT_BE_SENT as reason:
            if name == "priority" and isinstance(value, int):
                return InvalidRequest(
                    f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {shown(value)}",
                    name,
                )
            if isinstance(reason, OverflowError):
                return InvalidRequest(
                    f"{name} holds an integer that cannot be sent: they go from -2**63 to 2**64 - 1",
                    name,
                )
            return InvalidRequest(f"{name} holds something that cannot be sent: {reason}", name)
    return InvalidRequest(f"the request holds something that cannot be sent: {error}")


R = TypeVar("R", TokenizeReply, DetokenizeReply, EmbeddingChunk)


def expect_reply(reply: object, kind: type[R], timeout: float | None) -> R:
    """The reply if it is of this kind; None means that none came in time. Raises RequestError."""
    if isinstance(reply, kind):
        return reply
    if isinstance(reply, RequestFailed):
        raise error_of(reply)
    if reply is None:
        raise RequestError(f"the daemon did not answer within {timeout} s", "unavailable")
    raise RequestError(f"the daemon answered {type(reply).__name__} instead of {kind.__name__}")


def check_timeout(name: str, value: float | None) -> None:
    """Raises InvalidRequest unless the value is None or a positive number of seconds."""
    if value is not None and not 0 < value < 1e9:
        raise InvalidRequest(f"{name} must be above 0 seconds, got {value!r:.80}", name)


def error_of(failure: RequestFailed, prefix: str = "") -> RequestError:
    """The exception that tells a caller of a refusal."""
    return _error(prefix + failure.message, failure.code, failure.param, failure.retry_after_ms)


def error_of_sample(last: GenerateChunk) -> RequestError:
    """The exception that tells a caller why a sample ended with an error."""
    message = last.error or "the request failed inside the daemon"
    return _error(message, last.error_code, last.error_param)


def _error(
    message: str, code: ErrorCode, param: str | None, retry_after_ms: int | None = None
) -> RequestError:
    if code in ("invalid_request", "context_length_exceeded"):
        return InvalidRequest(message, param, code)
    return RequestError(message, code, param, retry_after_ms)
