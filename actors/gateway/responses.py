"""POST /v1/responses: OpenAI's newer API, as far as it needs no memory between requests."""

import time
from typing import Any, Final

import msgspec

from pillion.actors.gateway.answers import Answers
from pillion.actors.gateway.bodies import read_body
from pillion.actors.gateway.chat_completions import template_arguments
from pillion.actors.gateway.events import stream_answers
from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway, new_id
from pillion.actors.gateway.http_errors import http_error_of
from pillion.actors.gateway.response_builder import ResponseBuilder
from pillion.actors.gateway.response_stream import ResponseStream
from pillion.actors.gateway.responses_input import (
    chat_messages,
    chat_tool_choice,
    chat_tools,
    check_fields,
)
from pillion.actors.gateway.responses_replies import Response
from pillion.actors.gateway.responses_requests import ResponsesRequest
from pillion.actors.gateway.sampling_fields import make_params
from pillion.actors.gateway.structure_fields import STRUCTURE, structure_of_format
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest
from pillion.runtime.errors import DaemonUnavailable, RequestError

_LOGPROBS: Final = "message.output_text.logprobs"
_RENAMED: Final = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    STRUCTURE: "text",
}


async def responses(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Answers a conversation, whole or as a stream; nothing is stored."""
    async with gateway.counted(exchange) as generation:
        body = read_body(data, ResponsesRequest)
        request = body.request
        gateway.check_model(request.model)
        check_fields(request)
        generate = _generation(gateway, request)
        begun = _begun(gateway.model_name, request)
        try:
            async with Answers(gateway.link, [generate], generation) as answers:
                if request.stream:
                    shape = ResponseStream(begun)
                    await stream_answers(exchange, answers, shape, body.headers, _RENAMED)
                else:
                    builder = ResponseBuilder(begun)
                    while chunks := await answers.next():
                        for _, chunk in chunks:
                            builder.add(chunk)
                    reply = msgspec.json.encode(builder.finish())
                    await exchange.reply(200, reply, body.headers)
        except (RequestError, DaemonUnavailable) as error:
            raise http_error_of(error, _RENAMED) from error


def _generation(gateway: Gateway, request: ResponsesRequest) -> GenerateRequest:
    effort = None if request.reasoning is None else request.reasoning.effort
    return GenerateRequest(
        client_request_id=gateway.link.new_request_id(),
        messages=chat_messages(request),
        sampling_params=_sampling(request),
        chat_template_kwargs=template_arguments(None, effort),
        tools=chat_tools(request.tools),
        tool_choice=chat_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        parse_output=True,
        stream=bool(request.stream),
    )


def _sampling(request: ResponsesRequest) -> SamplingParams:
    fields: dict[str, Any] = {"max_tokens": request.max_output_tokens}
    for name in ("temperature", "top_p"):
        if getattr(request, name) is not None:
            fields[name] = getattr(request, name)
    if request.top_logprobs is not None or _LOGPROBS in (request.include or ()):
        fields["logprobs"] = request.top_logprobs or 0
    if request.text is not None:
        fields[STRUCTURE] = structure_of_format(request.text.format, "text.format", "text")
    return make_params(fields, _RENAMED)


def _begun(model: str, request: ResponsesRequest) -> Response:
    """The response before there is any output."""
    effort = None if request.reasoning is None else request.reasoning.effort
    return Response(
        id=new_id("resp_"),
        created_at=int(time.time()),
        status="in_progress",
        model=model,
        output=[],
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        tools=[msgspec.to_builtins(tool) for tool in request.tools or ()],
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning={"effort": effort, "summary": None},
        text={"format": (request.text and request.text.format) or {"type": "text"}},
        metadata=request.metadata or {},
    )
