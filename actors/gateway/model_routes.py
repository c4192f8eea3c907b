"""Routes that generate nothing: models, tokens, versions, probes, metrics."""

import msgspec

import pillion
from pillion.actors.gateway.bodies import read_body
from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.http_errors import RETRY_AFTER_S, HttpError, http_error_of, invalid
from pillion.actors.gateway.launcher_status import ask_status
from pillion.actors.gateway.metrics_page import CONTENT_TYPE, metrics_page
from pillion.actors.gateway.openai_replies import (
    DetokenizeAnswer,
    Model,
    ModelList,
    TokenizeAnswer,
    TokenizerInfo,
    VersionAnswer,
)
from pillion.actors.gateway.text_bodies import DetokenizeBody, EmbeddingBody, TokenizeBody
from pillion.messages.codec import unpack_ids
from pillion.messages.text import TokenizeRequest
from pillion.messages.value_checks import MAX_TOKEN_ID, shown
from pillion.runtime.clock import now_ns
from pillion.runtime.errors import RequestError


async def list_models(gateway: Gateway, exchange: Exchange, _: bytes) -> None:
    """Names the one model that is served."""
    await _reply(exchange, ModelList(data=[_model(gateway)]))


async def one_model(gateway: Gateway, exchange: Exchange, _: bytes) -> None:
    """Tells of the model, if it is this one."""
    gateway.check_model(exchange.scope["path_params"]["model"])
    await _reply(exchange, _model(gateway))


async def tokenize(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Gives the tokens of a text or a chat, as a generation would see them."""
    body = read_body(data, TokenizeBody)
    request = body.request
    gateway.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("exactly one of prompt and messages must be given", "prompt")
    reply = await gateway.link.tokenize(
        TokenizeRequest(
            client_request_id=gateway.link.new_request_id(),
            prompt=request.prompt,
            messages=request.messages,
            add_special_tokens=request.add_special_tokens is not False,
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            chat_template_kwargs=request.chat_template_kwargs,
            tools=request.tools or None,
        )
    )
    tokens = unpack_ids(reply.token_ids)
    answer = TokenizeAnswer(count=len(tokens), max_model_len=reply.max_model_len, tokens=tokens)
    await exchange.reply(200, msgspec.json.encode(answer), body.headers)


async def detokenize(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Gives the text of tokens."""
    body = read_body(data, DetokenizeBody)
    request = body.request
    gateway.check_model(request.model)
    for token_id in request.tokens:
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise invalid(
                f"tokens takes token ids from 0 to {MAX_TOKEN_ID}, got {shown(token_id)}", "tokens"
            )
    try:
        text = await gateway.link.detokenize(
            request.tokens, skip_special_tokens=bool(request.skip_special_tokens)
        )
    except RequestError as error:
        raise http_error_of(error, {"token_ids": "tokens"}) from error
    answer = DetokenizeAnswer(prompt=text)
    await exchange.reply(200, msgspec.json.encode(answer), body.headers)


async def tokenizer_info(gateway: Gateway, exchange: Exchange, _: bytes) -> None:
    """Names the special tokens and shows the chat template, for tools that tokenize through this server."""
    reply = await gateway.link.tokenize(
        TokenizeRequest(
            client_request_id=gateway.link.new_request_id(), prompt="", describe_tokenizer=True
        )
    )
    tokens = reply.special_tokens or {}
    answer = TokenizerInfo(
        bos_token=tokens.get("bos_token"),
        eos_token=tokens.get("eos_token"),
        pad_token=tokens.get("pad_token"),
        unk_token=tokens.get("unk_token"),
        chat_template=reply.chat_template,
    )
    await _reply(exchange, answer)


async def embeddings(gateway: Gateway, _: Exchange, data: bytes) -> None:
    """Says that there are no embeddings: error `unsupported`."""
    gateway.check_model(read_body(data, EmbeddingBody).request.model)
    raise HttpError(
        400,
        f"{gateway.model_name} generates text and has no embeddings; this version serves no embedding models",
        code="unsupported",
        param="model",
    )


async def version(_: Gateway, exchange: Exchange, __: bytes) -> None:
    """Tells Pillion's version."""
    await _reply(exchange, VersionAnswer(version=pillion.__version__))


async def live(_: Gateway, exchange: Exchange, __: bytes) -> None:
    """Answers 200 as long as the server's process runs."""
    await exchange.reply(200, b"{}")


async def ready(gateway: Gateway, exchange: Exchange, _: bytes) -> None:
    """Answers 200 if a request would run now, else 503."""
    reason = await gateway.link.why_not_ready()
    if reason is not None:
        raise HttpError(503, reason, code="unavailable", retry_after_s=RETRY_AFTER_S)
    await exchange.reply(200, b"{}")


async def metrics(gateway: Gateway, exchange: Exchange, _: bytes) -> None:
    """Gives numbers of the whole daemon in Prometheus' text format."""
    is_ready = await gateway.link.why_not_ready() is None
    # Numbers of this process alone would look as if all counters had begun anew.
    status = await ask_status(gateway.run_dir, gateway.stats.at(now_ns()))
    page = metrics_page(status, gateway.config, gateway.model_name, is_ready)
    await exchange.reply(200, page, content_type=CONTENT_TYPE)


def _model(gateway: Gateway) -> Model:
    geometry = gateway.link.geometry
    return Model(
        id=gateway.model_name,
        created=gateway.created,
        max_model_len=None if geometry is None else geometry.max_model_len,
    )


async def _reply(exchange: Exchange, answer: msgspec.Struct) -> None:
    await exchange.reply(200, msgspec.json.encode(answer))
