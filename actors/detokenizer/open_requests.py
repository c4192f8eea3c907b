"""Requests and samples from their arrival until their last chunk is on its way."""

from array import array
from dataclasses import dataclass, field

from pillion.actors.detokenizer.answer_plan import AnswerPlan
from pillion.actors.detokenizer.client_sessions import Session
from pillion.actors.detokenizer.incremental import TextStream
from pillion.actors.detokenizer.logprob_columns import LogprobRow, PromptLogprobTable
from pillion.actors.detokenizer.parsed_output import OutputParser, OutputParts, ParsedOutput
from pillion.actors.detokenizer.stop_strings import StopMatcher
from pillion.actors.detokenizer.tokenizer import Tokenizer
from pillion.messages.ids import FinishReason, RequestId, SequenceId
from pillion.messages.requests import NewRequest
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import DetokenizeRequest, TokenizeRequest, TraceContext
from pillion.runtime.errors import RequestError


class OpenSample:
    """One answer: all its tokens, and its text as far as it is certain."""

    __slots__ = (
        "dirty",
        "error",
        "finish_reason",
        "first_token_ns",
        "index",
        "is_plain",
        "last_sent",
        "last_token_ns",
        "logprobs",
        "matcher",
        "num_cached_tokens",
        "num_prompt_tokens",
        "num_reasoning_tokens",
        "num_sent",
        "num_thoughts",
        "parsed",
        "parser",
        "pieces",
        "planned_ns",
        "request",
        "sequence_id",
        "stop_reason",
        "text",
        "token_ids",
    )

    def __init__(self, request: "OpenRequest", index: int) -> None:
        self.request = request
        self.index = index
        self.sequence_id: SequenceId = request.request_id + index
        self.token_ids: array[int] = array("i")
        self.num_sent = 0  # tokens that the client has
        self.num_thoughts = 0  # tokens in front of the answer, as far as it is known that they are
        self.text: TextStream | None = None
        self.matcher: StopMatcher | None = None
        self.pieces: list[str] = []  # text that the client does not have yet
        # Of a chat whose reasoning and calls come apart; the text goes through them then.
        self.parser: OutputParser | None = None
        self.parsed: ParsedOutput | None = None
        self.num_reasoning_tokens = 0
        self.logprobs: list[LogprobRow] = []  # of tokens that the client does not have yet
        self.is_plain = False  # text is all that its tokens become; known from its first one on
        self.num_prompt_tokens = 0  # likewise
        self.dirty = False
        self.last_sent = False  # the last chunk is on its way
        self.planned_ns = 0  # the scheduler has made the first plan with it
        self.num_cached_tokens = 0  # of the prompt, as it found it then
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: RequestError | None = None

    def begin_text(self, tokenizer: Tokenizer, answer: AnswerPlan | None) -> None:
        """From now on its tokens become text, as its request wants it."""
        params = self.request.params
        if params.detokenize:
            self.text = tokenizer.stream(
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
                frozenset() if answer is None else answer.markers,
            )
        if answer is not None:
            self.parsed = answer.output(self.sequence_id, self.request.arrival_ns)
            self.parser = answer.parser(self.parsed)
        if params.stop_strings:
            self.matcher = StopMatcher(params.stop_strings)

    def continue_text(self, other: "OpenSample") -> None:
        """Takes over the text of a sample that has taken the same tokens and sent what was certain."""
        self.text, self.matcher = other.text, other.matcher
        self.parser, self.parsed = other.parser, other.parsed
        self.num_thoughts = other.num_thoughts

    def note_plain(self) -> None:
        """Its first token is being taken: says how the others can be."""
        request = self.request
        if request.admitted is not None:
            self.num_prompt_tokens = len(request.admitted.prompt_token_ids) // 4
        self.is_plain = (
            self.text is not None
            and self.matcher is None
            and self.parsed is None
            and request.params.logprobs is None
        )

    def is_next(self, position: int, count: int) -> bool:
        """Whether a row with so many tokens has the next one and no other."""
        return count == 1 and position == self.num_prompt_tokens + len(self.token_ids)

    def take_plain(self, token_id: int) -> None:
        """One more token of a sample that is plain."""
        self.token_ids.append(token_id)
        if self.text is not None and (piece := self.text.push(token_id)):
            self.pieces.append(piece)

    def take(self, token_id: int) -> str | None:
        """One more token. Returns the stop string that its text completes, if any."""
        self.token_ids.append(token_id)
        if self.text is None:
            return None
        if self.thinks:
            self.num_thoughts = len(self.token_ids)
        piece = self.text.push(token_id)
        stop = self._take_text(piece) if piece else None
        if self.thinks:
            self.num_reasoning_tokens += 1
        return stop

    def take_silent(self, token_id: int) -> None:
        """One more token whose text the client shall not see: the stop token."""
        self.token_ids.append(token_id)

    def end_text(self) -> str | None:
        """No token follows: what was held back becomes text. Returns a stop string that this completes."""
        if self.text is None:
            return None
        tail = self.text.flush()
        stop = self._take_text(tail) if tail else None
        if stop is None and self.matcher is not None:
            self._show(self.matcher.flush())
        return stop

    @property
    def thinks(self) -> bool:
        """Whether what comes next is not yet the answer, so that a grammar does not hold for it."""
        return self.parser is not None and self.parser.in_reasoning

    @property
    def is_full(self) -> bool:
        """Whether all calls that are wanted have been made, so that nothing more can count."""
        return self.parsed is not None and self.parsed.full

    @property
    def has_news(self) -> bool:
        """Whether there is text that the client does not have."""
        return bool(self.pieces) or (self.parsed is not None and self.parsed.has_news)

    def end_parsing(self) -> None:
        """No text follows: the parser decides on what it holds back."""
        if self.parser is not None and self.parsed is not None:
            self.parser.finish()
            self.parsed.finish()
            self.parser = None

    def take_parts(self) -> OutputParts:
        """What the client does not have yet; it counts as sent."""
        if self.parsed is not None:
            return self.parsed.take()
        text, self.pieces = "".join(self.pieces), []
        return OutputParts(text)

    def _take_text(self, piece: str) -> str | None:
        # Before min_tokens nothing may end the answer, so nothing is looked for.
        if self.matcher is None or len(self.token_ids) <= self.request.params.min_tokens:
            self._show(piece)
            return None
        certain, stop = self.matcher.push(piece)
        if certain:
            self._show(certain)
        if stop is not None and self.request.params.include_stop_str_in_output:
            self._show(stop)
        return stop

    def _show(self, text: str) -> None:
        if self.parser is not None:
            self.parser.push(text)
        else:
            self.pieces.append(text)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that the edge has accepted."""

    request_id: RequestId
    session: Session
    client_request_id: str
    params: SamplingParams
    stream: bool
    arrival_ns: int
    deadline_ns: int | None
    priority: int
    cache_salt: str
    samples: list[OpenSample] = field(default_factory=list)
    # As the scheduler got it; None until then.
    admitted: NewRequest | None = None
    user_stop_ids: frozenset[int] = frozenset()
    num_running: int = 0  # samples that are not over
    num_unsent: int = 0  # samples whose last chunk the client does not have
    return_prompt_token_ids: bool = False
    is_chat: bool = False
    trace: TraceContext | None = None
    # What goes into the first chunk; that chunk waits until the table is full.
    prompt_logprobs: PromptLogprobTable | None = None
    first_sent: bool = False  # perhaps by an earlier text edge
    num_cached_tokens: int | None = None  # as its client was or will be told
    miss_reason: str = ""
    admitted_ns: int = 0  # it has gone to the scheduler
    planned_ns: int = 0  # the scheduler has made the first plan with it
    scheduled_ns: int = 0  # and this edge has heard of it
    first_token_ns: int = 0
    first_step_ns: int = 0
    first_answered_ns: int = 0  # the worker had the answer of that step
    finished_ns: int = 0

    @property
    def waits_for_prompt(self) -> bool:
        """Whether nothing may be sent because prompt log-probabilities are still to come."""
        return self.prompt_logprobs is not None and not self.prompt_logprobs.complete


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A client asks for tokens or text and not for an answer of the model."""

    question_id: int  # in the numbering of requests
    session: Session
    message: TokenizeRequest | DetokenizeRequest
