"""From a client's request to the scheduler's: checks, tokens, and what waits until the engine is ready."""

import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from pillion.actors.detokenizer.client_sessions import ClientSessions, Session
from pillion.actors.detokenizer.grammars.demand import GrammarDemand
from pillion.actors.detokenizer.grammars.desk import FollowedGrammar
from pillion.actors.detokenizer.logprob_columns import PromptLogprobTable
from pillion.actors.detokenizer.open_requests import OpenQuestion, OpenRequest, OpenSample
from pillion.actors.detokenizer.prompt_jobs import (
    PreparedPrompt,
    PromptJob,
    detokenize,
    lane_of,
    prepare_prompt,
    tokenize,
)
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.actors.detokenizer.request_checks import (
    check_length,
    check_question,
    check_request,
    check_request_id,
    check_token_ids,
)
from pillion.actors.detokenizer.resumed_text import check_produced, replay_text, restore_progress
from pillion.actors.detokenizer.text_model import TextModel
from pillion.actors.detokenizer.token_sampling import resolve_sampling, sample_seeds
from pillion.messages.base import RingMessage
from pillion.messages.codec import pack_ids
from pillion.messages.control import EngineGeometry
from pillion.messages.ids import RequestId, first_request_id
from pillion.messages.requests import NewRequest
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import DetokenizeRequest, GenerateRequest, TokenizeRequest
from pillion.runtime.clock import NS_PER_MS
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvalidRequest, InvariantBroken, RequestError
from pillion.runtime.lives import Lives

RETRY_AFTER_MS: Final = 1000
# A restarted edge counts from where its predecessor cannot have been.
_IDS_PER_EPOCH_BITS: Final = 32
# Deadlines of requests that are long over are swept out when there are more of them than of open ones.
_SPARE_DEADLINES: Final = 64

# A prompt and, of a request that is resumed, its samples as they were.
_Prepared = tuple[PreparedPrompt, list[OpenSample]]


class Admissions:
    """Requests and questions on their way in."""

    def __init__(
        self,
        epoch: int,
        edge_index: int,
        config: EngineConfig,
        sessions: ClientSessions,
        book: RequestBook,
        outgoing: list[tuple[str, RingMessage]],
        lives: Lives,
    ) -> None:
        self.model: TextModel | None = None
        self.geometry: EngineGeometry | None = None
        self.jobs: list[PromptJob] = []  # for whoever drives the edge to run
        self._epoch = epoch
        self._edge_index = edge_index
        self._config = config
        self._sessions = sessions
        self._book = book
        self._outgoing = outgoing
        self._lives = lives
        self._next_id = first_request_id(edge_index) + ((epoch - 1) << _IDS_PER_EPOCH_BITS) + 1
        self._waiting: deque[OpenRequest | OpenQuestion] = deque()
        self._questions: dict[int, OpenQuestion] = {}
        self._running_jobs: dict[int, PromptJob] = {}
        # Prepared requests whose grammar is being compiled.
        self._compiling: dict[RequestId, _Prepared] = {}
        # The scheduler keeps the deadlines of the requests that it has.
        self._deadlines: list[tuple[int, RequestId]] = []

    @property
    def ready(self) -> bool:
        """Whether what comes in is prepared and sent on at once."""
        return self.model is not None and self.geometry is not None

    @property
    def num_open(self) -> int:
        """Requests and questions that are not over."""
        return len(self._book.requests) + len(self._questions)

    def accept(
        self, session: Session, message: GenerateRequest, size_bytes: int, now_ns: int
    ) -> None:
        """Takes a request in. Raises RequestError if it is refused; nothing is kept of it then."""
        self._check_entry(session, message.client_request_id, message.resume is not None)
        check_request(message, self._config.allow_request_templates)
        params = message.sampling_params or SamplingParams()
        deadline_ns = (
            None if message.deadline_ms is None else now_ns + message.deadline_ms * NS_PER_MS
        )
        resume = message.resume
        request = OpenRequest(
            request_id=self._take_ids(params.n),
            session=session,
            message=message,
            client_request_id=message.client_request_id,
            params=params,
            stream=message.stream,
            arrival_ns=now_ns if resume is None else now_ns - resume.elapsed_ms * NS_PER_MS,
            deadline_ns=deadline_ns,
            priority=message.priority,
            cache_salt=message.cache_salt,
            size_bytes=size_bytes,
            return_prompt_token_ids=message.return_prompt_token_ids,
        )
        self._book.add(request)
        if resume is not None:
            restore_progress(request, resume)
        if deadline_ns is not None:
            heapq.heappush(self._deadlines, (deadline_ns, request.request_id))
        self._begin(request)

    def ask(
        self, session: Session, message: TokenizeRequest | DetokenizeRequest, size_bytes: int
    ) -> None:
        """Takes a question in. Raises RequestError if it is refused."""
        self._check_entry(session, message.client_request_id)
        check_question(message)
        question = OpenQuestion(
            request_id=self._take_ids(1), session=session, message=message, size_bytes=size_bytes
        )
        self._questions[question.request_id] = question
        session.questions[message.client_request_id] = question
        self._begin(question)

    def start_waiting(self) -> None:
        """Begins with all that came before the engine was ready, if it is now."""
        while self.ready and self._waiting:
            entry = self._waiting.popleft()
            if entry.request_id in self._book.requests or entry.request_id in self._questions:
                self._begin(entry)

    def on_job_done(self, job: PromptJob) -> None:
        """A job has run."""
        if self._running_jobs.pop(job.job_id, None) is None:
            return
        question = self._questions.get(job.job_id)
        request = self._book.requests.get(job.job_id)
        if question is not None:
            self._answer(question, job)
        elif request is not None:
            self._on_prepared(request, job)

    def on_grammar(self, request_id: RequestId, error: str | None) -> None:
        """The grammar of a request works, or why it does not."""
        request = self._book.requests.get(request_id)
        prepared = self._compiling.pop(request_id, None)
        if not self._book.grammars.forget(request_id) or request is None or prepared is None:
            return
        prompt, _ = prepared
        try:
            if error is not None and prompt.grammar is not None:
                param = prompt.grammar.param
                raise InvalidRequest(f"{param}: {error}", param)
            self._admit(request, *prepared)
        except RequestError as refusal:
            self._book.fail(request, refusal)

    def forget_job(self, job_id: int) -> None:
        """Nobody wants this request or question any more."""
        job = self._running_jobs.pop(job_id, None)
        if job is not None:
            job.cancelled = True
        if self._compiling.pop(job_id, None) is not None:
            self._book.grammars.forget(job_id)

    def _on_prepared(self, request: OpenRequest, job: PromptJob) -> None:
        try:
            if job.error is not None:
                raise job.error
            prepared: _Prepared = job.result
            demand = prepared[0].grammar
            if demand is None:
                self._admit(request, *prepared)
            else:
                self._compiling[request.request_id] = prepared
                self._book.grammars.compile(request.request_id, demand.source)
        except RequestError as error:
            self._book.fail(request, error)

    def end_question(self, question: OpenQuestion) -> None:
        """The question is answered, or nobody wants the answer."""
        self.forget_job(question.request_id)
        self._questions.pop(question.request_id, None)
        question.session.questions.pop(question.message.client_request_id, None)

    def end_all(self, error: RequestError, tell_scheduler: bool = False) -> None:
        """Ends everything that is open with this error."""
        for request in list(self._book.requests.values()):
            self.forget_job(request.request_id)
            self._book.fail(request, error, tell_scheduler)
        for question in list(self._questions.values()):
            self._refuse_question(question, error)

    def expire(self, now_ns: int) -> int | None:
        """Ends requests whose deadline passes before the scheduler has them. Returns the next deadline."""
        if len(self._deadlines) > 2 * len(self._book.requests) + _SPARE_DEADLINES:
            self._deadlines = [each for each in self._deadlines if self._needs_deadline(each[1])]
            heapq.heapify(self._deadlines)
        while self._deadlines:
            deadline_ns, request_id = self._deadlines[0]
            if self._needs_deadline(request_id):
                if deadline_ns > now_ns:
                    return deadline_ns
                self.forget_job(request_id)
                self._book.end_request(self._book.requests[request_id], "timeout", now_ns)
            heapq.heappop(self._deadlines)
        return None

    def _needs_deadline(self, request_id: RequestId) -> bool:
        request = self._book.requests.get(request_id)
        return request is not None and request.admitted is None

    def admit_again(self) -> None:
        """A new term: the scheduler gets every request that is open, with the tokens that its client has."""
        self._book.grammars.unseat()
        for request in self._book.requests.values():
            if request.admitted is None:
                continue
            again = replace(
                request.admitted,
                produced_token_ids=_produced(request),
                finished=_finished(request),
                worker_epoch=self._lives["gpu_worker"],
            )
            self._outgoing.append(("scheduler", again))

    def _check_entry(
        self, session: Session, client_request_id: str, is_resumed: bool = False
    ) -> None:
        check_request_id(client_request_id)
        if client_request_id in session.requests or client_request_id in session.questions:
            raise InvalidRequest(
                f"client_request_id {client_request_id!r:.80} is in use on this connection",
                "client_request_id",
            )
        geometry = self.geometry
        num_running = (
            (self._config.max_num_seqs or 1) if geometry is None else geometry.max_num_seqs
        )
        limit = self._config.max_queued_requests + num_running
        # Whoever was let in by an earlier edge has a place, also when new requests are here first.
        if self.num_open >= limit * (2 if is_resumed else 1):
            raise RequestError(
                f"{self.num_open} requests are open, which is the limit (max_queued_requests + max_num_seqs):"
                " try again later",
                "overloaded",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _take_ids(self, count: int) -> int:
        first = self._next_id
        self._next_id += count
        return first

    def _begin(self, entry: OpenRequest | OpenQuestion) -> None:
        model, geometry = self.model, self.geometry
        if model is None or geometry is None:
            self._waiting.append(entry)
            return
        message = entry.message
        if message is None:
            raise InvariantBroken(f"request {entry.request_id} begins twice")
        lane = lane_of(message, entry.size_bytes)
        job = PromptJob(entry.request_id, lane, self._work(entry, model, geometry))
        self._running_jobs[job.job_id] = job
        if lane == "inline":
            job.run()
            self.on_job_done(job)
        else:
            self.jobs.append(job)

    def _work(
        self, entry: OpenRequest | OpenQuestion, model: TextModel, geometry: EngineGeometry
    ) -> Callable[[], Any]:
        match entry.message:
            case GenerateRequest() as message if isinstance(entry, OpenRequest):
                entry.message = None  # the job holds it as long as it is needed
                return partial(_prepare, model, geometry, message, entry)
            case TokenizeRequest() as message:
                return partial(tokenize, model, message, geometry.max_model_len)
            case DetokenizeRequest() as message:
                return partial(detokenize, model, message, geometry.vocab_size)
            case other:
                raise InvariantBroken(f"no preparation for {type(other).__name__}")

    def _admit(
        self, request: OpenRequest, prompt: PreparedPrompt, replayed: list[OpenSample]
    ) -> None:
        model, geometry = self.model, self.geometry
        if model is None or geometry is None:
            raise InvariantBroken("a prompt was prepared without a model")
        count = len(prompt.token_ids)
        check_length(count, geometry.max_model_len)
        check_token_ids("prompt_token_ids", prompt.token_ids, geometry.vocab_size)
        params = request.params
        sampling = resolve_sampling(
            params,
            model.end_ids,
            prompt.bad_words,
            count,
            geometry.vocab_size,
            geometry.max_model_len,
            needs_masks=prompt.grammar is not None,
        )
        request.user_stop_ids = frozenset(params.stop_token_ids or ())
        if request.first_sent:  # and with it what was to be said of the prompt
            sampling = replace(sampling, prompt_logprobs=None)
        elif params.prompt_logprobs is not None:
            request.prompt_logprobs = PromptLogprobTable(count, params.prompt_logprobs)
        running = [sample for sample in request.samples if sample.finish_reason is None]
        check_produced(running, sampling.max_tokens)
        for sample in running:
            self._book.samples[sample.sequence_id] = sample
            if replayed:
                sample.continue_text(replayed[sample.index])
            else:
                sample.begin_text(model.tokenizer, prompt.answer)
        self._book.counters["prompt_tokens"] += count
        request.admitted = NewRequest(
            epoch=self._epoch,
            edge_index=self._edge_index,
            request_id=request.request_id,
            client_key=request.session.client_key,
            n=params.n,
            prompt_token_ids=pack_ids(prompt.token_ids),
            produced_token_ids=_produced(request) if request.first_sent else [],
            finished=_finished(request),
            seeds=sample_seeds(params.seed, params.n),
            sampling=sampling,
            arrival_time_ns=request.arrival_ns,
            deadline_ns=request.deadline_ns,
            priority=request.priority,
            cache_salt=request.cache_salt,
            worker_epoch=self._lives["gpu_worker"],
        )
        self._outgoing.append(("scheduler", request.admitted))
        if prompt.grammar is not None:
            self._follow(running, prompt.grammar, count, sampling.stop_token_ids)

    def _follow(
        self,
        running: list[OpenSample],
        demand: GrammarDemand,
        num_prompt_tokens: int,
        end_ids: list[int],
    ) -> None:
        for sample in running:
            grammar = FollowedGrammar(
                sequence_id=sample.sequence_id,
                source=demand.source,
                end_ids=end_ids,
                num_prompt_tokens=num_prompt_tokens,
                token_ids=sample.token_ids,
                may_reason=demand.may_reason,
                reasoning_ids=demand.reasoning_ids,
                call_ids=demand.call_ids,
            )
            self._book.grammars.follow(grammar, sample.thinks, sample.num_thoughts)

    def _answer(self, question: OpenQuestion, job: PromptJob) -> None:
        if job.error is not None:
            self._refuse_question(question, job.error)
            return
        self._sessions.replies.append((question.session.session_id, job.result))
        self.end_question(question)

    def _refuse_question(self, question: OpenQuestion, error: RequestError) -> None:
        self._sessions.refuse(
            question.session.session_id, question.message.client_request_id, error
        )
        self.end_question(question)


def _prepare(
    model: TextModel, geometry: EngineGeometry, message: GenerateRequest, request: OpenRequest
) -> _Prepared:
    """The prompt's tokens and, of a request that is resumed, its samples as they were. Raises RequestError."""
    prompt = prepare_prompt(model, message, request.params, geometry.max_model_len)
    if message.resume is None:
        return prompt, []
    return prompt, replay_text(request, message.resume, model.tokenizer, prompt.answer, geometry)


def _produced(request: OpenRequest) -> list[bytes]:
    return [sample.token_ids.tobytes() for sample in request.samples]


def _finished(request: OpenRequest) -> list[int]:
    return [sample.index for sample in request.samples if sample.finish_reason is not None]
