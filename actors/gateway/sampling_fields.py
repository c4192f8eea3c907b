"""From a body's fields to SamplingParams, and the refusal of what is not offered."""

import re
from typing import Any, Final

from pillion.actors.gateway.http_errors import http_error_of, invalid, unsupported
from pillion.actors.gateway.openai_requests import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
)
from pillion.actors.gateway.structure_fields import structure_of
from pillion.messages.sampling import SamplingParams
from pillion.runtime.errors import InvalidRequest

# Fields that SamplingParams has under the same name.
_SAME_NAMES: Final = (
    "n",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "allowed_token_ids",
    "bad_words",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "prompt_logprobs",
)
_USE_TOOLS: Final = "this way of calling functions is no longer offered: use tools and tool_choice"


def chat_sampling(request: ChatCompletionRequest) -> SamplingParams:
    """How a chat is answered: without a limit, up to the end of the context. Raises HttpError 400."""
    _refuse_shared(request)
    _refuse_of_chat(request)
    fields = _fields(request)
    if request.max_completion_tokens is not None:
        fields["max_tokens"] = request.max_completion_tokens
    fields.setdefault("max_tokens", None)
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    if request.logprobs:
        fields["logprobs"] = request.top_logprobs or 0
    renamed = {"logprobs": "top_logprobs"}
    if request.max_completion_tokens is not None:
        renamed["max_tokens"] = "max_completion_tokens"
    return make_params(fields, renamed)


def completion_sampling(request: CompletionRequest) -> SamplingParams:
    """How prompts are completed: with 16 tokens unless told otherwise. Raises HttpError 400."""
    _refuse_shared(request)
    if request.suffix:
        raise unsupported("suffix", "filling in the middle is not offered by this version")
    fields = _fields(request)
    if request.logprobs is not None:
        fields["logprobs"] = request.logprobs
    if request.echo and request.max_tokens == 0:
        # The engine has no answer of no tokens: one is made and left out.
        fields["max_tokens"] = 1
    if request.echo and request.logprobs is not None and request.prompt_logprobs is None:
        fields["prompt_logprobs"] = request.logprobs
    return make_params(fields)


def make_params(fields: dict[str, Any], renamed: dict[str, str] | None = None) -> SamplingParams:
    """SamplingParams of checked fields. Raises HttpError 400 naming the field.

    `renamed`: the names that fields have in this API.
    """
    try:
        return SamplingParams(**fields)
    except ValueError as error:
        name = re.match(r"\w+", str(error))  # the message begins with it
        raise http_error_of(InvalidRequest(str(error), name and name[0]), renamed) from error


def _fields(request: SamplingFields) -> dict[str, Any]:
    fields = {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    if request.logit_bias is not None:
        fields["logit_bias"] = {_token_id(name): bias for name, bias in request.logit_bias.items()}
    fields["structured_outputs"] = structure_of(request)
    return fields


def _token_id(name: str) -> int:
    # Ten digits hold every id; int() alone would also take spaces and underscores.
    if not re.fullmatch(r"-?[0-9]{1,10}", name):
        raise invalid(f"logit_bias maps token ids to numbers, got {name!r:.80}", "logit_bias")
    return int(name)


def _refuse_shared(request: SamplingFields) -> None:
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise unsupported(
            "best_of",
            f"sampling {request.best_of} answers and returning {request.n or 1} is not offered, because the"
            " others would be computed and thrown away: ask for `n` answers and choose by `logprobs`",
        )


def _refuse_of_chat(request: ChatCompletionRequest) -> None:
    if request.functions:
        raise unsupported("functions", _USE_TOOLS)
    if request.function_call not in (None, "none", "auto"):
        raise unsupported("function_call", _USE_TOOLS)
    if request.audio is not None:
        raise unsupported("audio", "this server answers with text")
    if request.modalities is not None and request.modalities != ["text"]:
        raise unsupported("modalities", "this server answers with text")
    if request.add_generation_prompt and request.continue_final_message:
        raise invalid(
            "continue_final_message and add_generation_prompt exclude each other",
            "continue_final_message",
        )
