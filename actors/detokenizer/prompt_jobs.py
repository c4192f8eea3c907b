"""The work that a request needs before it is made of tokens: where it runs, and how it fails alone."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pillion.actors.detokenizer.answer_plan import AnswerPlan
from pillion.actors.detokenizer.chat_template import continued
from pillion.actors.detokenizer.grammars.demand import GrammarDemand, demand_of
from pillion.actors.detokenizer.request_checks import check_text_size, check_token_ids, listed_ids
from pillion.actors.detokenizer.template_process import render_apart
from pillion.actors.detokenizer.text_model import TextModel
from pillion.actors.detokenizer.token_sampling import bad_word_ids
from pillion.actors.detokenizer.tool_use import ToolUse, as_told, read_tool_use
from pillion.messages.codec import pack_ids
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    DetokenizeReply,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeReply,
    TokenizeRequest,
)
from pillion.runtime.errors import InvalidRequest, RequestError

logger = logging.getLogger(__name__)

# Where a job runs. Each of the last three has threads of its own, so none waits for longer work:
# "inline": on the spot; "quick": chats and texts of a few pages; "long": longer ones; "apart": clients'
# templates.
Lane = Literal["inline", "quick", "long", "apart"]
# Tokenizing takes about a millisecond for 2 KB of text.
INLINE_BYTES: Final = 2 * 1024
QUICK_BYTES: Final = 32 * 1024


@dataclass(slots=True)
class PreparedPrompt:
    """A request in terms of tokens."""

    token_ids: list[int]
    bad_words: list[list[int]]
    answer: AnswerPlan | None = None  # None: the answer is text and nothing else
    grammar: GrammarDemand | None = None


class PromptJob:
    """One piece of work; `run` may be called on any thread and never raises."""

    def __init__(self, job_id: int, lane: Lane, work: Callable[[], Any]) -> None:
        self.job_id = job_id
        self.lane: Lane = lane
        self.cancelled = False  # set by the owner; a job that has not begun is then left undone
        self.result: Any = None
        self.error: RequestError | None = None
        self._work = work

    def run(self) -> None:
        """Does the work, and keeps its result or its error."""
        if self.cancelled:
            return
        try:
            self.result = self._work()
        except RequestError as error:
            self.error = error
        except RecursionError:
            self.error = InvalidRequest(
                "the request is nested too deeply: its messages, tools or schemas need fewer levels"
            )
        # A request fails alone, also by what nobody foresaw; the tokenizers library even panics, which is
        # no Exception.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            logger.exception("a prompt could not be prepared")
            self.error = RequestError(
                f"preparing the prompt failed: {type(error).__name__}: {error}"
            )


def lane_of(
    request: GenerateRequest | TokenizeRequest | DetokenizeRequest, size_bytes: int
) -> Lane:
    """Where the preparation of a request of so many bytes belongs."""
    if isinstance(request, GenerateRequest):
        params = request.sampling_params
        if request.chat_template is not None:
            return "apart"
        has_text = request.prompt_token_ids is None or request.resume is not None
        if not has_text and not (params and params.bad_words):
            return "inline"
    if size_bytes > QUICK_BYTES:
        return "long"
    is_chat = not isinstance(request, DetokenizeRequest) and request.messages is not None
    return "quick" if is_chat or size_bytes > INLINE_BYTES else "inline"


def prepare_prompt(
    model: TextModel, request: GenerateRequest, params: SamplingParams, max_model_len: int
) -> PreparedPrompt:
    """Renders and tokenizes. Raises RequestError."""
    keep = params.truncate_prompt_tokens
    answer = None
    if request.prompt_token_ids is not None:
        token_ids = listed_ids(request.prompt_token_ids)
    elif request.messages is None:
        token_ids = _tokens_of(
            model, request.prompt or "", request.add_special_tokens, max_model_len, keep is not None
        )
    else:
        tools = read_tool_use(request) if request.parse_output else ToolUse()
        hides_tools = request.parse_output and tools.choice == "none"
        text = _rendered(model, request, None if hides_tools else request.tools)
        token_ids = _tokens_of(model, text, False, max_model_len, keep is not None)
        if request.parse_output:
            answer = AnswerPlan(
                model.tool_format,
                model.reasoning_format,
                tools,
                _ends_in_reasoning(model, request, text),
            )
    return PreparedPrompt(
        token_ids=token_ids if keep is None else token_ids[-keep:],
        bad_words=bad_word_ids(params.bad_words or [], model.tokenizer),
        answer=answer,
        grammar=demand_of(model.tokenizer, params, answer),
    )


def tokenize(model: TextModel, request: TokenizeRequest, max_model_len: int) -> TokenizeReply:
    """Answers a TokenizeRequest. Raises RequestError."""
    if request.messages is None:
        text, add_special_tokens = request.prompt or "", request.add_special_tokens
    else:
        text, add_special_tokens = _rendered(model, request, request.tools), False
    token_ids = _tokens_of(model, text, add_special_tokens, max_model_len, truncated=True)
    return TokenizeReply(
        client_request_id=request.client_request_id,
        token_ids=pack_ids(token_ids),
        max_model_len=max_model_len,
        special_tokens=model.chat_template.special_tokens if request.describe_tokenizer else None,
        chat_template=model.chat_template.default if request.describe_tokenizer else None,
    )


def detokenize(model: TextModel, request: DetokenizeRequest, vocab_size: int) -> DetokenizeReply:
    """Answers a DetokenizeRequest. Raises InvalidRequest for ids outside the vocabulary."""
    check_token_ids("token_ids", request.token_ids, vocab_size)
    return DetokenizeReply(
        client_request_id=request.client_request_id,
        text=model.tokenizer.decode(request.token_ids, request.skip_special_tokens),
    )


def _rendered(
    model: TextModel,
    request: GenerateRequest | TokenizeRequest,
    tools: list[dict[str, Any]] | None,
) -> str:
    messages = request.messages or []
    template = model.chat_template
    tools = None if tools is None else [as_told(tool) for tool in tools]
    own_template = request.chat_template if isinstance(request, GenerateRequest) else None
    if own_template is None:
        return template.render(
            messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=tools,
            arguments=request.chat_template_kwargs,
        )
    variables = template.variables(
        messages,
        request.add_generation_prompt and not request.continue_final_message,
        tools,
        request.chat_template_kwargs,
    )
    text = render_apart(own_template, variables)
    return continued(text, messages) if request.continue_final_message else text


def _ends_in_reasoning(model: TextModel, request: GenerateRequest, prompt: str) -> bool | None:
    """Whether the prompt ends inside the model's reasoning; None where it does not say."""
    form = model.reasoning_format
    if form is None:
        return None
    if request.continue_final_message:
        begun = (request.messages or [{}])[-1].get("content")
        prompt = begun if isinstance(begun, str) else ""
        return prompt.rfind(form.start) > prompt.rfind(form.end)
    if not request.add_generation_prompt:
        return None
    end = prompt.rstrip()
    if end.endswith(form.start):
        return True
    return False if end.endswith(form.end) else None


def _tokens_of(
    model: TextModel, text: str, add_special_tokens: bool, max_model_len: int, truncated: bool
) -> list[int]:
    num_bytes = len(text.encode("utf-8", "replace"))
    least = model.tokenizer.min_tokens(num_bytes)
    check_text_size(num_bytes, least, max_model_len, truncated)
    try:
        return model.tokenizer.encode(text, add_special_tokens)
    except ValueError as error:
        raise InvalidRequest(str(error), "prompt") from error
