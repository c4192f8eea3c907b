"""The text edge: between clients, who speak of text, and the ring, which speaks of tokens.

A pure core: frames of clients and messages of the ring go in, messages for both come out. No socket, clock
or thread is in here; work that takes long is left in `jobs` for whoever drives this.
"""

from collections.abc import Mapping
from typing import assert_never

from pillion.actors.detokenizer.admissions import Admissions
from pillion.actors.detokenizer.client_frames import MalformedFrame, decode_frame
from pillion.actors.detokenizer.client_sessions import (
    MAX_FAIRNESS_KEY_CHARS,
    ClientSessions,
    Session,
)
from pillion.actors.detokenizer.grammar_answers import GrammarAnswers
from pillion.actors.detokenizer.grammars.calls import GrammarReply, SetVocabulary
from pillion.actors.detokenizer.prompt_jobs import PromptJob
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.actors.detokenizer.step_rows import StepRows
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.base import RingMessage
from pillion.messages.control import (
    Drain,
    Drained,
    EngineFailed,
    EngineGeometry,
    PeerRestarted,
    Shutdown,
)
from pillion.messages.inboxes import DetokenizerInbox
from pillion.messages.requests import RequestClosed, RequestRejected, RequestScheduled
from pillion.messages.steps import StepOutput
from pillion.messages.text import (
    PROTOCOL_VERSION,
    CancelRequest,
    DetokenizeRequest,
    EmbedRequest,
    GenerateRequest,
    Hello,
    TokenizeRequest,
    Welcome,
)
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvalidRequest, InvariantBroken, RequestError
from pillion.runtime.lives import Lives

_Request = GenerateRequest | CancelRequest | EmbedRequest | TokenizeRequest | DetokenizeRequest


class TextEdge:
    """All state of one text edge.

    `outgoing`: for other actors. `sessions.replies`: for clients. `sessions.hang_ups`: connections to close
    once their replies have left. `jobs`: work to run on a thread and to hand back through `on_job_done`.
    `grammars.calls`: for the grammar process. Whoever drives this calls `tick` after each batch of input, then
    takes these five and clears them.
    """

    def __init__(
        self,
        epoch: int,
        config: EngineConfig,
        version: str,
        edge_index: int = 0,
        peer_epochs: Mapping[str, int] | None = None,
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.sessions = ClientSessions()
        self.gauges: dict[str, int | float | str] = {
            "open_requests": 0,
            "clients": 0,
            "open_grammars": 0,
        }
        self._epoch = epoch
        self._config = config
        self._version = version
        self._book = RequestBook(epoch, self.sessions, self.outgoing)
        self.counters = self._book.counters
        self._rows = StepRows(epoch, self._book, self.outgoing)
        self._lives = Lives(peer_epochs)
        self._admissions = Admissions(
            epoch, edge_index, config, self.sessions, self._book, self.outgoing, self._lives
        )
        self.jobs: list[PromptJob] = self._admissions.jobs
        self.grammars = self._book.grammars
        self._grammar_answers = GrammarAnswers(epoch, self._admissions, self._book, self.outgoing)
        self._closed_because: str | None = None  # why nothing new is taken
        self._drain_deadline_ns: int | None = None
        self._drained = False

    # From the shell.

    def on_model(self, model: TextModel) -> None:
        """Tokenizer and chat template are loaded."""
        self._admissions.model = model
        self._book.tokenizer = model.tokenizer
        self._admissions.start_waiting()

    def open_session(self, session_id: int) -> None:
        """A client has connected."""
        self.sessions.open(session_id)

    def close_session(self, session_id: int) -> None:
        """A client is gone: its requests are cancelled."""
        session = self.sessions.close(session_id)
        if session is None:
            return
        for request in list(session.requests.values()):
            self._admissions.forget_job(request.request_id)
            self._book.drop(request)
        for question in list(session.questions.values()):
            self._admissions.end_question(question)

    def on_slow(self, session_id: int, now_ns: int) -> None:
        """A client does not take what was sent: from now on its output is merged."""
        self.sessions.note_slow(session_id, now_ns)

    def on_caught_up(self, session_id: int) -> None:
        """A client has taken what was sent."""
        session = self.sessions.note_caught_up(session_id)
        if session is not None:
            self._book.visit(session)

    def on_broken_framing(self, session_id: int, message: str) -> None:
        """A client sends what cannot be cut into frames: nothing after it can be understood."""
        session = self.sessions.by_id.get(session_id)
        if session is not None:
            self.sessions.turn_away(session_id, InvalidRequest(message))

    def on_frame(self, session_id: int, payload: bytes, now_ns: int) -> None:
        """A frame of a client. Whatever is in it, the answer goes to this client and hurts nobody else."""
        session = self.sessions.by_id.get(session_id)
        if session is None:
            return
        try:
            message = decode_frame(payload)
        except MalformedFrame as error:
            if session.greeted:
                self.sessions.refuse(session_id, error.client_request_id, error)
            else:
                self.sessions.turn_away(session_id, error)
            return
        if isinstance(message, Hello):
            self._on_hello(session, message)
        elif session.greeted:
            self._on_request(session, message, len(payload), now_ns)
        else:
            self.sessions.turn_away(session_id, InvalidRequest("the first frame must be a Hello"))

    def on_job_done(self, job: PromptJob) -> None:
        """A job has run."""
        self._admissions.on_job_done(job)

    def vocabulary(self) -> SetVocabulary:
        """What a new grammar process must know. May be called on another thread, once there is a model."""
        model = self._admissions.model
        if model is None:
            raise InvariantBroken("a grammar came before the model")
        tokenizer = model.tokenizer
        return SetVocabulary(
            tokens=tokenizer.spellings(self.grammars.vocab_size),
            special_ids=sorted(tokenizer.special_ids),
        )

    def on_grammar_replies(self, replies: list[GrammarReply], now_ns: int) -> None:
        """The grammar process has said something."""
        for reply in replies:
            self._grammar_answers.take(reply, now_ns)

    def on_grammar_process_lost(self, now_ns: int) -> None:
        """The grammar process has ended; the calls for another one are there now."""
        self._book.counters["grammar_processes_lost"] += 1
        self._grammar_answers.on_lost(now_ns)

    # From the ring.

    def on_message(self, message: DetokenizerInbox, now_ns: int) -> None:
        """Takes one message. Raises InvariantBroken for what cannot be."""
        if self._lives.is_stale(message):
            return
        if self._lives.begun_by(message) in ("scheduler", "gpu_worker"):
            self._admissions.admit_again()
        match message:
            case StepOutput():
                if message.plan_epoch == self._lives["scheduler"]:
                    self._rows.take(message, now_ns)
            case RequestScheduled() | RequestRejected() | RequestClosed():
                if message.worker_epoch == self._lives["gpu_worker"]:
                    self._on_scheduler_message(message, now_ns)
            case EngineGeometry():
                self._admissions.geometry = message
                self._rows.vocab_size = self.grammars.vocab_size = message.vocab_size
                self._admissions.start_waiting()
            case PeerRestarted():
                pass
            case Drain():
                self._closed_because = "the daemon is stopping"
                self._drain_deadline_ns = message.deadline_ns
            case EngineFailed():
                self._closed_because = message.message
                self._admissions.end_all(RequestError(message.message, message.code))
            case Shutdown():
                self._closed_because = self._closed_because or "the daemon is stopping"
                self._admissions.end_all(RequestError(self._closed_because, "unavailable"))
                self.finished = True
            case _:
                assert_never(message)

    def tick(self, now_ns: int) -> int | None:
        """Work after a batch of input; returns when to be called again at the latest."""
        deadlines = [
            self._admissions.expire(now_ns),
            self._give_up_stalled(now_ns),
            self.grammars.watch(now_ns),
        ]
        if self._drain_deadline_ns is not None:
            deadlines.append(self._drain(now_ns))
        self._book.flush()
        self.outgoing += [("gpu_worker", masks) for masks in self.grammars.take_masks()]
        self.gauges["open_grammars"] = self.grammars.num_followed
        self.gauges["open_requests"] = self._admissions.num_open
        self.gauges["clients"] = len(self.sessions.by_id)
        return min((each for each in deadlines if each is not None), default=None)

    def _on_hello(self, session: Session, hello: Hello) -> None:
        if session.greeted:
            error = InvalidRequest("a second Hello on one connection")
            self.sessions.refuse(session.session_id, "", error)
            return
        if hello.protocol_version != PROTOCOL_VERSION:
            self.sessions.turn_away(
                session.session_id,
                RequestError(
                    f"protocol_version {hello.protocol_version} is not spoken here: pillion"
                    f" {self._version} speaks {PROTOCOL_VERSION}",
                    "unsupported",
                    "protocol_version",
                ),
            )
            return
        if len(hello.fairness_key) > MAX_FAIRNESS_KEY_CHARS:
            length = len(hello.fairness_key)
            error = InvalidRequest(
                f"fairness_key may have {MAX_FAIRNESS_KEY_CHARS} characters, got {length}",
                "fairness_key",
            )
            self.sessions.turn_away(session.session_id, error)
            return
        self.sessions.greet(session, hello.fairness_key)
        self.sessions.replies.append((session.session_id, self._welcome()))

    def _welcome(self) -> Welcome:
        geometry, model = self._admissions.geometry, self._admissions.model
        capabilities = ["generate", "logprobs", "prompt_logprobs", "tokenize"]
        if model is not None and model.chat_template:
            capabilities.append("chat")
        if model is not None and model.tokenizer.can_spell:
            capabilities.append("structured_outputs")
        if self._config.allow_request_templates:
            capabilities.append("request_templates")
        model_name = self._config.model if geometry is None else geometry.model_name
        return Welcome(
            protocol_version=PROTOCOL_VERSION,
            version=self._version,
            model_name=self._config.served_model_name or model_name,
            ready=self._admissions.ready,
            max_model_len=0 if geometry is None else geometry.max_model_len,
            vocab_size=0 if geometry is None else geometry.vocab_size,
            capabilities=capabilities,
        )

    def _on_request(
        self, session: Session, message: _Request, size_bytes: int, now_ns: int
    ) -> None:
        if isinstance(message, CancelRequest):
            self._on_cancel(session, message, now_ns)
            return
        is_generation = isinstance(message, GenerateRequest)
        self.counters["requests_received"] += is_generation
        try:
            if self._closed_because is not None:
                raise RequestError(self._closed_because, "unavailable")
            match message:
                case GenerateRequest():
                    self._admissions.accept(session, message, size_bytes, now_ns)
                case TokenizeRequest() | DetokenizeRequest():
                    self._admissions.ask(session, message, size_bytes)
                case EmbedRequest():
                    raise RequestError(
                        "this model generates text and has no embeddings", "unsupported"
                    )
                case _:
                    assert_never(message)
        except RequestError as error:
            self.counters["requests_refused"] += is_generation
            self.sessions.refuse(session.session_id, message.client_request_id, error)

    def _on_cancel(self, session: Session, cancel: CancelRequest, now_ns: int) -> None:
        # An id that is not open is no fault: the answer and the cancel have crossed each other.
        question = session.questions.get(cancel.client_request_id)
        if question is not None:
            self._admissions.end_question(question)
        request = session.requests.get(cancel.client_request_id)
        if request is not None and request.num_running:
            self._admissions.forget_job(request.request_id)
            self._book.end_request(request, "abort", now_ns)

    def _on_scheduler_message(
        self, message: RequestScheduled | RequestRejected | RequestClosed, now_ns: int
    ) -> None:
        match message:
            case RequestScheduled():
                self._on_scheduled(message, now_ns)
            case RequestRejected():
                self._on_rejected(message)
            case RequestClosed():
                self._on_closed(message, now_ns)
            case _:
                assert_never(message)

    def _on_scheduled(self, message: RequestScheduled, now_ns: int) -> None:
        sample = self._book.samples.get(message.sequence_id)
        if sample is None:
            return
        request = sample.request
        self.grammars.on_scheduled(message)
        if not request.scheduled_ns:
            request.scheduled_ns = now_ns
            if request.num_cached_tokens is None:
                request.num_cached_tokens = message.num_cached_tokens
                request.miss_reason = message.miss_reason

    def _on_rejected(self, message: RequestRejected) -> None:
        request = self._book.requests.get(message.request_id)
        if request is not None:
            error = RequestError(
                message.message, message.code, retry_after_ms=message.retry_after_ms
            )
            self._book.fail(request, error, tell_scheduler=False)

    def _on_closed(self, message: RequestClosed, now_ns: int) -> None:
        sample = self._book.samples.get(message.sequence_id)
        if sample is not None:
            sample.end_text()
            self._book.end_sample(sample, message.finish_reason, now_ns, error=message.message)

    def _give_up_stalled(self, now_ns: int) -> int | None:
        stalled, again_ns = self.sessions.stalled(now_ns)
        for session in stalled:
            self.sessions.hang_ups.append(session.session_id)
            self.close_session(session.session_id)
        return again_ns

    def _drain(self, now_ns: int) -> int | None:
        """Reports when nothing is open any more; at the deadline what is left ends with an error."""
        deadline_ns = self._drain_deadline_ns
        if deadline_ns is None or self._drained:
            return None
        if now_ns >= deadline_ns:
            error = RequestError("the daemon is stopping", "unavailable")
            self._admissions.end_all(error, tell_scheduler=True)
        elif self._admissions.num_open:
            return deadline_ns
        self._drained = True
        self.outgoing.append(("launcher", Drained(actor="detokenizer", epoch=self._epoch)))
        return None
