"""The client protocol: frames over a Unix stream socket.

A frame is a little-endian uint32 length and that many bytes of msgpack: one of these structs with its
type's name in the field "type". The client begins with Hello, within ten seconds, and the daemon answers Welcome, or
RequestFailed with an empty client_request_id and hangs up. Requests are told apart by an id that the
client chooses; one connection
carries any number at a time. When the connection closes, its requests are cancelled; a client whose
connection was lost sends them again on another one, with what it already has of their answers (`Resume`).
"""

from typing import Any, Final

import msgspec

from pillion.messages.base import EdgeMessage
from pillion.messages.ids import ErrorCode, FinishReason
from pillion.messages.sampling import SamplingParams

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_PRIORITY: Final = 2**31 - 1


class Hello(EdgeMessage, frozen=True):
    """First frame of a client."""

    protocol_version: int
    client_name: str = ""
    # Requests of clients that give the same key share one fair share; empty: this connection alone.
    fairness_key: str = ""


class Welcome(EdgeMessage, frozen=True):
    """The daemon's answer to Hello. `ready` tells whether requests are run at once or wait for the weights."""

    protocol_version: int
    version: str
    model_name: str
    ready: bool
    max_model_len: int  # 0 while not known
    vocab_size: int
    capabilities: list[str]


class ReceivedSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client has of one sample."""

    token_ids: bytes = b""  # packed int32
    num_chars: int = 0  # code points of its text
    finish_reason: FinishReason | None = None  # set if it has the sample's last chunk


class Resume(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client has of an answer whose connection was lost: the rest is to follow exactly behind it.

    A request that may have to be resumed needs a seed from the start, unless nothing had come of it.
    """

    samples: list[ReceivedSample]  # one for each of the n
    elapsed_ms: int = (
        0  # since the request was first sent: it keeps its place among those that wait
    )
    num_cached_tokens: int | None = None  # as in the first chunk, if that has come
    cache_miss_reason: str = ""


class TraceContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a request belongs in a trace; ignored by a daemon that does not trace."""

    traceparent: str  # of W3C Trace Context; one that is malformed is ignored
    tracestate: str = ""
    begins_here: bool = (
        False  # the trace begins with that span: whether it is sampled is the daemon's choice
    )


class GenerateRequest(EdgeMessage, frozen=True):
    """Asks for text. Exactly one of prompt, messages and prompt_token_ids is given."""

    client_request_id: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt_token_ids: list[int] | bytes | None = None  # bytes: packed int32
    sampling_params: SamplingParams | None = None
    priority: int = 0  # from -MAX_PRIORITY to MAX_PRIORITY
    deadline_ms: int | None = None  # from now on; the request then ends with "timeout"
    cache_salt: str = ""
    add_special_tokens: bool = True  # for `prompt`; a rendered chat adds none
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None  # refused unless the daemon allows it
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_prompt_token_ids: bool = False
    stream: bool = True  # False: one chunk per sample, when it has finished
    # Of a chat: reasoning and tool calls come apart from the text.
    parse_output: bool = False
    # "auto", "none", "required", or {"type": "function", "function": {"name": ...}}. Needs parse_output,
    # and so does the next.
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True  # False: nothing follows the first call
    resume: Resume | None = None  # a request that is sent again after a lost connection
    trace: TraceContext | None = None


class CancelRequest(EdgeMessage, frozen=True):
    """Ends a request; its open samples get a last chunk with finish_reason "abort"."""

    client_request_id: str


class HttpSpan(EdgeMessage, frozen=True):
    """What a gateway did about one HTTP request, to be exported with the daemon's own spans. Nothing answers."""

    traceparent: str  # of this span
    started_ns: int  # monotonic
    ended_ns: int
    method: str
    route: str
    status: int
    request_id: str
    parent_id: str | None = None  # 16 hexadecimal digits; None: the trace begins here
    tracestate: str = ""


class EmbedRequest(EdgeMessage, frozen=True):
    """Asks for embeddings. Refused as unsupported by models that only generate."""

    client_request_id: str
    inputs: list[str | list[int]]
    pooling: str = ""


class TokenizeRequest(EdgeMessage, frozen=True):
    """Asks for the token ids of a prompt or a chat, as GenerateRequest would see them."""

    client_request_id: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    describe_tokenizer: bool = False


class DetokenizeRequest(EdgeMessage, frozen=True):
    """Asks for the text of token ids."""

    client_request_id: str
    token_ids: list[int]
    skip_special_tokens: bool = False


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of m consecutive tokens. Column 0 is the token itself, then the best `num_top`.

    An id of -1 fills the column where there is nothing (the first prompt token).
    """

    num_top: int
    token_ids: bytes  # [m, 1 + num_top] int32
    logprobs: bytes  # [m, 1 + num_top] float32
    ranks: bytes  # [m] int32
    decoded: list[str]  # m * (1 + num_top) texts


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a whole request, all samples together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_miss_reason: str
    reasoning_tokens: int = 0  # of completion_tokens, where reasoning was asked apart from the text


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a request got on, in milliseconds since the text edge received it."""

    scheduled_ms: float  # its first sample got a slot
    first_token_ms: float
    finished_ms: float
    first_step_ms: float  # the worker's own time for the step that gave the first token


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new of one call of a function. `id` and `name` come with its first delta."""

    index: int  # of the call, from 0 in each sample
    id: str = ""
    name: str = ""
    arguments: str = ""  # a part of a JSON object


class GenerateChunk(EdgeMessage, frozen=True):
    """New text and tokens of one sample.

    `offset` counts the sample's tokens before this chunk, so that chunks of one sample join without gap
    or overlap. The text may lag behind the tokens (incomplete characters, possible stop strings); the
    last chunk has all of it.
    """

    client_request_id: str
    index: int
    text: str = ""
    token_ids: bytes = b""  # packed int32
    offset: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or stop string that ended it
    logprobs: TokenLogprobs | None = None
    prompt_token_ids: bytes | None = None  # in a request's first chunk, if asked for
    prompt_logprobs: TokenLogprobs | None = None  # in a request's first chunk, if asked for
    usage: Usage | None = None  # in a request's last chunk
    times: RequestTimes | None = None  # likewise
    error: str | None = None  # with finish_reason "error"
    reasoning: str = ""  # what the model says to itself, where it was asked apart from the text
    tool_calls: list[ToolCallDelta] = []  # likewise
    # In a request's first chunk: prompt tokens that the prefix cache had, and why not more.
    num_cached_tokens: int | None = None
    cache_miss_reason: str = ""
    error_code: ErrorCode = "internal"  # of `error`
    error_param: str | None = None  # likewise: the field to change


class RequestFailed(EdgeMessage, frozen=True):
    """The whole request failed; no chunk follows."""

    client_request_id: str
    code: ErrorCode
    message: str
    param: str | None = None  # the field to change
    retry_after_ms: int | None = None


class TokenizeReply(EdgeMessage, frozen=True):
    """Token ids, and the longest sequence that the model takes."""

    client_request_id: str
    token_ids: bytes
    max_model_len: int
    # With `describe_tokenizer`: special tokens by what they are for ("eos_token"), and the chat template.
    special_tokens: dict[str, str] | None = None
    chat_template: str | None = None


class DetokenizeReply(EdgeMessage, frozen=True):
    """Text of token ids."""

    client_request_id: str
    text: str


class EmbeddingChunk(EdgeMessage, frozen=True):
    """Vectors of an EmbedRequest."""

    client_request_id: str
    vectors: bytes
    dtype: str
    shape: list[int]
