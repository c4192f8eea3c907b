"""The table of routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

import msgspec

from pillion.actors.gateway import model_routes, response_builder
from pillion.actors.gateway.anthropic_messages import count_tokens, messages
from pillion.actors.gateway.anthropic_replies import AnthropicAnswer, Event, TokenCount
from pillion.actors.gateway.anthropic_requests import CountTokensRequest, MessagesRequest
from pillion.actors.gateway.chat_completions import chat_completions
from pillion.actors.gateway.completions import completions
from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.http_errors import ApiShape
from pillion.actors.gateway.live_status import live_status
from pillion.actors.gateway.openai_replies import (
    ChatChunk,
    ChatCompletion,
    Completion,
    DetokenizeAnswer,
    Model,
    ModelList,
    TokenizeAnswer,
    TokenizerInfo,
    VersionAnswer,
)
from pillion.actors.gateway.openai_requests import ChatCompletionRequest, CompletionRequest
from pillion.actors.gateway.page_files import index, page_file
from pillion.actors.gateway.responses import responses
from pillion.actors.gateway.responses_replies import Response
from pillion.actors.gateway.responses_requests import ResponsesRequest
from pillion.actors.gateway.text_bodies import DetokenizeBody, EmbeddingBody, TokenizeBody
from pillion.runtime.live_view import LiveView

Serve = Callable[[Gateway, Exchange, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One row of the table of routes. `guarded`: an API key is needed, if there are any."""

    method: Literal["GET", "POST"]
    path: str
    serve: Serve
    guarded: bool = True
    api_shape: ApiShape = "openai"
    # For the reference: what is sent, what comes back, and what a stream's events are.
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    events: tuple[type[msgspec.Struct], ...] = ()


ROUTES: Final = (
    RouteSpec(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        body=ChatCompletionRequest,
        answer=ChatCompletion,
        events=(ChatChunk,),
    ),
    RouteSpec(
        "POST",
        "/v1/completions",
        completions,
        body=CompletionRequest,
        answer=Completion,
        events=(Completion,),
    ),
    RouteSpec(
        "POST",
        "/v1/responses",
        responses,
        body=ResponsesRequest,
        answer=Response,
        events=get_args(response_builder.Event),
    ),
    RouteSpec(
        "POST",
        "/v1/messages",
        messages,
        api_shape="anthropic",
        body=MessagesRequest,
        answer=AnthropicAnswer,
        events=get_args(Event),
    ),
    RouteSpec(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        api_shape="anthropic",
        body=CountTokensRequest,
        answer=TokenCount,
    ),
    RouteSpec("POST", "/v1/embeddings", model_routes.embeddings, body=EmbeddingBody),
    RouteSpec("GET", "/v1/models", model_routes.list_models, answer=ModelList),
    RouteSpec("GET", "/v1/models/{model:path}", model_routes.one_model, answer=Model),
    RouteSpec("POST", "/tokenize", model_routes.tokenize, body=TokenizeBody, answer=TokenizeAnswer),
    RouteSpec(
        "POST", "/detokenize", model_routes.detokenize, body=DetokenizeBody, answer=DetokenizeAnswer
    ),
    RouteSpec("GET", "/tokenizer_info", model_routes.tokenizer_info, answer=TokenizerInfo),
    RouteSpec("GET", "/version", model_routes.version, answer=VersionAnswer),
    RouteSpec("GET", "/status", live_status, answer=LiveView),
    RouteSpec("GET", "/live", model_routes.live, guarded=False),
    RouteSpec("GET", "/ready", model_routes.ready, guarded=False),
    RouteSpec("GET", "/health", model_routes.ready, guarded=False),
    RouteSpec("GET", "/metrics", model_routes.metrics),
    RouteSpec("GET", "/", index, guarded=False),
    RouteSpec("GET", "/page/{name}", page_file, guarded=False),
)
