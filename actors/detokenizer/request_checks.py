"""What is wrong with a request, said with the field and its limit before any work is done for it."""

from array import array
from collections.abc import Sequence
from typing import Any, Final

from pillion.actors.detokenizer.tool_use import read_tool_use
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import (
    MAX_PRIORITY,
    DetokenizeRequest,
    GenerateRequest,
    Resume,
    TokenizeRequest,
)
from pillion.runtime.errors import InvalidRequest

MAX_REQUEST_ID_CHARS: Final = 256
MAX_SALT_CHARS: Final = 1024
MAX_DEADLINE_MS: Final = 2**40
MAX_MISS_REASON_CHARS: Final = 64
# A text that is going to be truncated may be longer than the model takes, but not without bound.
MAX_TRUNCATED_BYTES: Final = 4 * 1024 * 1024


def check_request_id(client_request_id: str) -> None:
    """Raises InvalidRequest for an id that is empty or long."""
    if not 1 <= len(client_request_id) <= MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"client_request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters, got {len(client_request_id)}",
            "client_request_id",
        )


def check_request(request: GenerateRequest, allow_templates: bool) -> None:
    """What can be checked without the model. Raises InvalidRequest."""
    _check_prompt_fields(request)
    if request.prompt_token_ids is not None and not len(request.prompt_token_ids):
        raise InvalidRequest(
            "prompt_token_ids must hold at least one token id, got none", "prompt_token_ids"
        )
    if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, got {request.priority}",
            "priority",
        )
    if request.deadline_ms is not None and not 1 <= request.deadline_ms <= MAX_DEADLINE_MS:
        raise InvalidRequest(
            f"deadline_ms must be between 1 and {MAX_DEADLINE_MS}, got {request.deadline_ms}",
            "deadline_ms",
        )
    if len(request.cache_salt) > MAX_SALT_CHARS:
        raise InvalidRequest(
            f"cache_salt may have {MAX_SALT_CHARS} characters, got {len(request.cache_salt)}",
            "cache_salt",
        )
    if request.chat_template is not None:
        _check_template(request, allow_templates)
    _check_parsing(request)
    if request.resume is not None:
        _check_resume(request.resume, request.sampling_params or SamplingParams())


def check_question(request: TokenizeRequest | DetokenizeRequest) -> None:
    """The same for questions about tokens."""
    if isinstance(request, TokenizeRequest):
        _check_prompt_fields(request)


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidRequest, naming the first id that is outside the vocabulary."""
    if not token_ids or 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        return
    place, wrong = next(
        (place, token_id)
        for place, token_id in enumerate(token_ids)
        if not 0 <= token_id < vocab_size
    )
    raise InvalidRequest(
        f"{name} takes token ids from 0 to {vocab_size - 1}, got {wrong} at index {place}", name
    )


def listed_ids(token_ids: list[int] | bytes) -> list[int]:
    """Token ids as a list. Raises InvalidRequest for bytes that are not packed int32."""
    if isinstance(token_ids, list):
        return token_ids
    if len(token_ids) % 4:
        raise InvalidRequest(
            f"prompt_token_ids as bytes must be packed int32, got {len(token_ids)} bytes",
            "prompt_token_ids",
        )
    return array("i", token_ids).tolist()


def check_length(num_prompt_tokens: int, max_model_len: int) -> None:
    """Raises InvalidRequest for a prompt that leaves no room for an answer, or is empty."""
    if not num_prompt_tokens:
        raise InvalidRequest("the prompt is empty: it must have at least one token", "prompt")
    if num_prompt_tokens >= max_model_len:
        raise InvalidRequest(
            f"the prompt is too long: it has {num_prompt_tokens} tokens and an answer needs at least 1, which"
            f" makes {num_prompt_tokens + 1}; the model takes {max_model_len} together (max_model_len)",
            "prompt",
            "context_length_exceeded",
        )


def check_text_size(num_bytes: int, min_tokens: int, max_model_len: int, truncated: bool) -> None:
    """Refuses a text that cannot fit before anyone tokenizes it. Raises InvalidRequest."""
    if truncated:
        if num_bytes > MAX_TRUNCATED_BYTES:
            raise InvalidRequest(
                f"a prompt to be truncated may have {MAX_TRUNCATED_BYTES} bytes, got {num_bytes}",
                "prompt",
            )
    elif min_tokens >= max_model_len:
        raise InvalidRequest(
            f"the prompt is too long: it has {num_bytes} bytes, which is at least {min_tokens} tokens; the"
            f" model takes {max_model_len} together with the answer (max_model_len)",
            "prompt",
            "context_length_exceeded",
        )


def _check_prompt_fields(request: GenerateRequest | TokenizeRequest) -> None:
    names = ["prompt", "messages"]
    if isinstance(request, GenerateRequest):
        names.append("prompt_token_ids")
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"exactly one of {', '.join(names)} must be given, got {' and '.join(given) or 'none'}",
            given[-1] if given else "prompt",
        )
    if given == ["messages"]:
        return
    chat_only: dict[str, Any] = {
        "chat_template_kwargs": request.chat_template_kwargs,
        "tools": request.tools,
        "continue_final_message": request.continue_final_message or None,
    }
    for name, value in chat_only.items():
        if value is not None:
            raise InvalidRequest(f"{name} needs messages, got {given[0]}", name)


def _check_parsing(request: GenerateRequest) -> None:
    if request.parse_output:
        if request.messages is None:
            raise InvalidRequest("parse_output needs messages", "parse_output")
        if request.sampling_params is not None and not request.sampling_params.detokenize:
            raise InvalidRequest("parse_output needs detokenize=True", "parse_output")
        read_tool_use(request)
    elif request.tool_choice not in (None, "auto"):
        raise InvalidRequest("tool_choice needs parse_output", "tool_choice")


def _check_resume(resume: Resume, params: SamplingParams) -> None:
    samples = resume.samples
    if len(samples) != params.n:
        raise InvalidRequest(
            f"resume must say of each of the {params.n} samples what has come, got {len(samples)}",
            "resume",
        )
    if all(sample.finish_reason is not None for sample in samples):
        raise InvalidRequest("resume: every sample has finished, nothing is left to send", "resume")
    if params.seed is None and any(sample.token_ids for sample in samples):
        raise InvalidRequest(
            "resume needs the seed that the request began with: without one the rest would be drawn with other"
            " noise than the beginning",
            "seed",
        )
    for index, sample in enumerate(samples):
        if len(sample.token_ids) % 4:
            raise InvalidRequest(
                f"resume: token_ids of sample {index} must be packed int32, got {len(sample.token_ids)} bytes",
                "resume",
            )
        if sample.num_chars < 0:
            raise InvalidRequest(f"resume: num_chars of sample {index} is negative", "resume")
    if not 0 <= resume.elapsed_ms <= MAX_DEADLINE_MS or (resume.num_cached_tokens or 0) < 0:
        raise InvalidRequest(
            f"resume: elapsed_ms must be between 0 and {MAX_DEADLINE_MS} and num_cached_tokens not negative, got"
            f" {resume.elapsed_ms} and {resume.num_cached_tokens}",
            "resume",
        )
    if len(resume.cache_miss_reason) > MAX_MISS_REASON_CHARS:
        raise InvalidRequest(
            f"resume: cache_miss_reason may have {MAX_MISS_REASON_CHARS} characters", "resume"
        )


def _check_template(request: GenerateRequest, allow_templates: bool) -> None:
    if not allow_templates:
        raise InvalidRequest(
            "chat_template in a request is refused: the daemon was started without allow_request_templates",
            "chat_template",
        )
    if request.messages is None:
        raise InvalidRequest("chat_template needs messages", "chat_template")
