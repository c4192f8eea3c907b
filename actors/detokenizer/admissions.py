"""From a client's request to the scheduler's: checks, tokens, and what waits until the engine is ready."""

from functools import partial

from msgspec.structs import replace

from pillion.actors.detokenizer.client_sessions import Session
from pillion.actors.detokenizer.deadlines import Deadlines
from pillion.actors.detokenizer.entrance import Entrance
from pillion.actors.detokenizer.grammars.demand import GrammarDemand
from pillion.actors.detokenizer.grammars.desk import FollowedGrammar
from pillion.actors.detokenizer.logprob_columns import PromptLogprobTable
from pillion.actors.detokenizer.new_requests import new_request, request_again
from pillion.actors.detokenizer.open_requests import OpenRequest, OpenSample
from pillion.actors.detokenizer.preparation import Preparation, Task
from pillion.actors.detokenizer.prompt_jobs import (
    PreparedPrompt,
    PromptJob,
    lane_of,
    prepare_prompt,
)
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.actors.detokenizer.request_checks import (
    check_length,
    check_request,
    check_token_ids,
)
from pillion.actors.detokenizer.resumed_text import check_produced, replay_text, restore_progress
from pillion.actors.detokenizer.text_model import TextModel
from pillion.actors.detokenizer.token_sampling import resolve_sampling
from pillion.messages.base import RingMessage
from pillion.messages.control import EngineGeometry
from pillion.messages.ids import RequestId
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest
from pillion.runtime.clock import NS_PER_MS
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvalidRequest, InvariantBroken, RequestError
from pillion.runtime.lives import Lives

# A prompt and, of a request that is resumed, its samples as they were.
_Prepared = tuple[PreparedPrompt, list[OpenSample]]


class Admissions:
    """Requests on their way in, and all of them again in a new term."""

    def __init__(
        self,
        epoch: int,
        edge_index: int,
        config: EngineConfig,
        entrance: Entrance,
        preparation: Preparation,
        book: RequestBook,
        outgoing: list[tuple[str, RingMessage]],
        lives: Lives,
    ) -> None:
        self._epoch = epoch
        self._edge_index = edge_index
        self._config = config
        self._entrance = entrance
        self._preparation = preparation
        self._book = book
        self._outgoing = outgoing
        self._lives = lives
        # Prepared requests whose grammar is being compiled.
        self._compiling: dict[RequestId, _Prepared] = {}
        self._deadlines = Deadlines(book.requests)

    def accept(
        self, session: Session, message: GenerateRequest, size_bytes: int, now_ns: int
    ) -> None:
        """Takes a request in. Raises RequestError if it is refused; nothing is kept of it then."""
        self._entrance.check(session, message.client_request_id, message.resume is not None)
        check_request(message, self._config.allow_request_templates)
        params = message.sampling_params or SamplingParams()
        deadline_ns = (
            None if message.deadline_ms is None else now_ns + message.deadline_ms * NS_PER_MS
        )
        resume = message.resume
        request = OpenRequest(
            request_id=self._entrance.take_ids(params.n),
            session=session,
            client_request_id=message.client_request_id,
            params=params,
            stream=message.stream,
            arrival_ns=now_ns if resume is None else now_ns - resume.elapsed_ms * NS_PER_MS,
            deadline_ns=deadline_ns,
            priority=message.priority,
            cache_salt=message.cache_salt,
            return_prompt_token_ids=message.return_prompt_token_ids,
            is_chat=message.messages is not None,
            trace=message.trace,
        )
        self._book.add(request)
        if resume is not None:
            restore_progress(request, resume)
        if deadline_ns is not None:
            self._deadlines.add(deadline_ns, request.request_id)
        task = Task(
            lane_of(message, size_bytes),
            partial(_prepare, message, request),
            partial(self._on_prepared, request),
        )
        self._preparation.begin(request.request_id, task)

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

    def forget(self, request_id: RequestId) -> None:
        """Nobody wants to have this request admitted any more."""
        self._preparation.forget(request_id)
        if self._compiling.pop(request_id, None) is not None:
            self._book.grammars.forget(request_id)

    def end_all(self, error: RequestError, tell_scheduler: bool = False) -> None:
        """Ends every request that is open with this error."""
        for request in list(self._book.requests.values()):
            self.forget(request.request_id)
            self._book.fail(request, error, tell_scheduler)

    def expire(self, now_ns: int) -> int | None:
        """Ends requests whose deadline passes before the scheduler has them. Returns the next deadline."""
        for request in self._deadlines.passed(now_ns):
            self.forget(request.request_id)
            self._book.end_request(request, "timeout", now_ns)
        return self._deadlines.next_ns

    def admit_again(self) -> None:
        """A new term: the scheduler gets every request that is open, with the tokens that its client has."""
        self._book.grammars.unseat()
        for request in self._book.requests.values():
            if request.admitted is not None:
                again = request_again(request, request.admitted, self._lives["gpu_worker"])
                self._outgoing.append(("scheduler", again))

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

    def _admit(
        self, request: OpenRequest, prompt: PreparedPrompt, replayed: list[OpenSample]
    ) -> None:
        model, geometry = self._preparation.model, self._preparation.geometry
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
        request.admitted = new_request(
            request,
            prompt.token_ids,
            sampling,
            self._epoch,
            self._edge_index,
            self._lives["gpu_worker"],
        )
        self._outgoing.append(("scheduler", request.admitted))
        self._book.meter.admitted(request)
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
                param=demand.param,
                end_ids=end_ids,
                num_prompt_tokens=num_prompt_tokens,
                token_ids=sample.token_ids,
                may_reason=demand.may_reason,
                reasoning_ids=demand.reasoning_ids,
                call_ids=demand.call_ids,
            )
            self._book.grammars.follow(grammar, sample.thinks, sample.num_thoughts)


def _prepare(
    message: GenerateRequest, request: OpenRequest, model: TextModel, geometry: EngineGeometry
) -> _Prepared:
    """The prompt's tokens and, of a request that is resumed, its samples as they were. Raises RequestError."""
    prompt = prepare_prompt(model, message, request.params, geometry.max_model_len)
    if message.resume is None:
        return prompt, []
    return prompt, replay_text(request, message.resume, model.tokenizer, prompt.answer, geometry)
