"""The text of answers that an earlier text edge began, derived again from the tokens that their clients have."""

from array import array
from collections.abc import Iterable

from pillion.actors.detokenizer.answer_plan import AnswerPlan
from pillion.actors.detokenizer.open_requests import OpenRequest, OpenSample
from pillion.actors.detokenizer.request_checks import check_token_ids
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.messages.control import EngineGeometry
from pillion.messages.text import Resume
from pillion.runtime.errors import InvalidRequest


def restore_progress(request: OpenRequest, resume: Resume) -> None:
    """Notes what the client has: tokens, samples that are over, what only a first chunk says."""
    for sample, received in zip(request.samples, resume.samples, strict=True):
        sample.token_ids.frombytes(received.token_ids)
        sample.num_sent = len(sample.token_ids)
        if received.finish_reason is not None:
            sample.finish_reason = received.finish_reason
            sample.last_sent = True
            request.num_running -= 1
            request.num_unsent -= 1
        # A chunk holds tokens or ends its sample: the first one has come if anything has.
        request.first_sent |= sample.num_sent > 0 or sample.last_sent
    request.num_cached_tokens = resume.num_cached_tokens
    request.miss_reason = resume.cache_miss_reason


def replay_text(
    request: OpenRequest,
    resume: Resume,
    tokenizer: Tokenizer,
    answer: AnswerPlan | None,
    geometry: EngineGeometry,
) -> list[OpenSample]:
    """Samples whose text stands where the client's does.

    May run on any thread: it changes nothing of the request. Raises InvalidRequest for tokens that cannot
    be those of this request.
    """
    samples = []
    for index, received in enumerate(resume.samples):
        token_ids = array("i", received.token_ids)
        if len(token_ids) >= geometry.max_model_len:
            raise InvalidRequest(
                f"resume: sample {index} has {len(token_ids)} tokens, and the model takes"
                f" {geometry.max_model_len} together with the prompt (max_model_len)",
                "resume",
            )
        check_token_ids("resume", token_ids, geometry.vocab_size)
        sample = OpenSample(request, index)
        if received.finish_reason is None:
            sample.begin_text(tokenizer, answer)
            _take_again(sample, token_ids, received.num_chars)
        samples.append(sample)
    return samples


def check_produced(samples: Iterable[OpenSample], max_tokens: int) -> None:
    """Raises InvalidRequest for a sample that has more tokens than its request allows."""
    for sample in samples:
        if len(sample.token_ids) > max_tokens:
            raise InvalidRequest(
                f"resume: sample {sample.index} has {len(sample.token_ids)} tokens, at most {max_tokens} were asked"
                " for (max_tokens)",
                "resume",
            )


def _take_again(sample: OpenSample, token_ids: "array[int]", num_chars: int) -> None:
    for token_id in token_ids:
        if sample.take(token_id) is not None:
            raise InvalidRequest(
                f"resume: the text of sample {sample.index} goes on behind a stop string", "resume"
            )
    # A chunk brings all text that its tokens make certain, so the client has exactly this.
    text = sample.take_parts().text
    if len(text) != num_chars:
        raise InvalidRequest(
            f"resume: the tokens of sample {sample.index} have {len(text)} characters of text, num_chars is"
            f" {num_chars}",
            "resume",
        )
