"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients call them."""

from typing import Any, Final

import msgspec

from pillion.actors.gateway.answers import Answers
from pillion.actors.gateway.anthropic_chat import (
    chat_messages,
    chat_tool_choice,
    chat_tools,
    continues,
)
from pillion.actors.gateway.anthropic_replies import (
    AnthropicAnswer,
    Block,
    TextBlock,
    ThinkingBlock,
    TokenCount,
    ToolUseBlock,
)
from pillion.actors.gateway.anthropic_requests import (
    ConversationFields,
    CountTokensRequest,
    MessagesRequest,
)
from pillion.actors.gateway.anthropic_stream import MessageStream, stop_of
from pillion.actors.gateway.bodies import read_body
from pillion.actors.gateway.events import stream_answers
from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway, new_id
from pillion.actors.gateway.http_errors import http_error_of
from pillion.actors.gateway.sample import Sample
from pillion.actors.gateway.sampling_fields import make_params
from pillion.actors.gateway.structure_fields import STRUCTURE, structure_of_format
from pillion.actors.gateway.usage import UsageCount
from pillion.messages.codec import num_ids
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest, TokenizeRequest
from pillion.runtime.errors import DaemonUnavailable, RequestError

_RENAMED: Final = {"stop": "stop_sequences", STRUCTURE: "output_config"}


async def messages(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Answers a conversation, whole or as a stream."""
    async with gateway.counted(exchange) as generation:
        body = read_body(data, MessagesRequest)
        request = body.request
        gateway.check_model(request.model)
        generate = _generation(gateway, request)
        try:
            async with Answers(gateway.link, [generate], generation) as answers:
                if request.stream:
                    shape = MessageStream(gateway.model_name, new_id("msg_"))
                    await stream_answers(exchange, answers, shape, body.headers, _RENAMED)
                else:
                    reply = await _whole(gateway.model_name, answers)
                    await exchange.reply(200, msgspec.json.encode(reply), body.headers)
        except (RequestError, DaemonUnavailable) as error:
            raise http_error_of(error, _RENAMED) from error


async def count_tokens(gateway: Gateway, exchange: Exchange, data: bytes) -> None:
    """Counts the tokens of the prompt that a conversation would be."""
    body = read_body(data, CountTokensRequest)
    request = body.request
    gateway.check_model(request.model)
    choice = chat_tool_choice(request.tool_choice)
    reply = await gateway.link.tokenize(
        TokenizeRequest(
            client_request_id=gateway.link.new_request_id(),
            messages=chat_messages(request),
            add_generation_prompt=not continues(request),
            continue_final_message=continues(request),
            chat_template_kwargs=_template_arguments(request),
            tools=None if choice == "none" else chat_tools(request.tools),
        )
    )
    count = TokenCount(input_tokens=num_ids(reply.token_ids))
    await exchange.reply(200, msgspec.json.encode(count), body.headers)


def _generation(gateway: Gateway, request: MessagesRequest) -> GenerateRequest:
    choice = request.tool_choice
    return GenerateRequest(
        client_request_id=gateway.link.new_request_id(),
        messages=chat_messages(request),
        sampling_params=_sampling(request),
        add_generation_prompt=not continues(request),
        continue_final_message=continues(request),
        chat_template_kwargs=_template_arguments(request),
        tools=chat_tools(request.tools),
        tool_choice=chat_tool_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        parse_output=True,
        # The first event of a stream tells how long the prompt is.
        return_prompt_token_ids=bool(request.stream),
        stream=bool(request.stream),
    )


def _sampling(request: MessagesRequest) -> SamplingParams:
    fields: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences,
    }
    if request.output_config is not None:
        form, place = request.output_config.format, "output_config.format"
        fields[STRUCTURE] = structure_of_format(form, place, "output_config")
    given = {name: value for name, value in fields.items() if value is not None}
    return make_params(given, _RENAMED)


def _template_arguments(request: ConversationFields) -> dict[str, Any] | None:
    """Whether and how much to think, under the names that chat templates use."""
    arguments: dict[str, Any] = {}
    if request.output_config is not None and request.output_config.effort is not None:
        arguments["reasoning_effort"] = request.output_config.effort
    if request.thinking is not None:
        thinks = request.thinking.type != "disabled"
        arguments |= {"enable_thinking": thinks, "thinking": thinks}
    return arguments or None


async def _whole(model: str, answers: Answers) -> AnthropicAnswer:
    sample, usage = Sample(), UsageCount()
    while chunks := await answers.next():
        for _, chunk in chunks:
            usage.add(chunk)
            sample.add(chunk)
    stop_reason, stop_sequence = stop_of(sample.finish_reason, sample.stop_reason)
    return AnthropicAnswer(
        id=new_id("msg_"),
        model=model,
        content=_blocks(sample),
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage=usage.anthropic(),
    )


def _blocks(sample: Sample) -> list[Block]:
    blocks: list[Block] = []
    if sample.reasoning:
        blocks.append(ThinkingBlock(thinking=sample.reasoning))
    if sample.text:
        blocks.append(TextBlock(text=sample.text))
    for call in sample.tool_calls:
        blocks.append(ToolUseBlock(id=call.id, name=call.name, input=_object(call.arguments)))
    return blocks


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
