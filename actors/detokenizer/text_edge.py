"""The text edge: between clients, who speak of text, and the ring, which speaks of tokens.

A pure core: frames of clients and messages of the ring go in, messages for both come out. No socket, clock
or thread is in here; work that takes long is left in `jobs` for whoever drives this.
"""

from collections.abc import Mapping
from typing import assert_never

from pillion.actors.detokenizer.admissions import Admissions
from pillion.actors.detokenizer.client_desk import ClientDesk
from pillion.actors.detokenizer.client_sessions import MAX_SESSIONS, ClientSessions
from pillion.actors.detokenizer.closing import Closing
from pillion.actors.detokenizer.entrance import Entrance
from pillion.actors.detokenizer.grammar_answers import GrammarAnswers
from pillion.actors.detokenizer.grammars.calls import GrammarReply, SetVocabulary
from pillion.actors.detokenizer.greeting import Greeter
from pillion.actors.detokenizer.open_requests import OpenQuestion
from pillion.actors.detokenizer.preparation import Preparation
from pillion.actors.detokenizer.prompt_jobs import PromptJob
from pillion.actors.detokenizer.questions import Questions
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.actors.detokenizer.scheduler_answers import SchedulerAnswers
from pillion.actors.detokenizer.step_rows import StepRows
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.base import RingMessage
from pillion.messages.control import (
    Drain,
    EngineFailed,
    EngineGeometry,
    PeerRestarted,
    Shutdown,
)
from pillion.messages.inboxes import DetokenizerInbox
from pillion.messages.requests import RequestClosed, RequestRejected, RequestScheduled
from pillion.messages.steps import StepOutput
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvalidRequest, InvariantBroken, RequestError
from pillion.runtime.lives import Lives


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
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.sessions = ClientSessions(max_sessions)
        self.gauges: dict[str, int | float | str] = {
            "open_requests": 0,
            "open_generations": 0,
            "clients": 0,
            "open_grammars": 0,
        }
        self._book = RequestBook(
            epoch, self.sessions, self.outgoing, traces_wanted=config.otlp_endpoint is not None
        )
        self.traces = self._book.traces
        self.counters = self._book.counters
        self.tallies = self._book.meter.tallies
        self.histograms = self._book.meter.histograms
        self._rows = StepRows(epoch, self._book, self.outgoing)
        self._lives = Lives(peer_epochs)
        self._preparation = Preparation()
        self.jobs: list[PromptJob] = self._preparation.jobs
        questions: dict[int, OpenQuestion] = {}
        self._entrance = Entrance(
            epoch, edge_index, config, self._preparation, self._book.requests, questions
        )
        self._questions = Questions(self.sessions, self._entrance, self._preparation, questions)
        self._admissions = Admissions(
            epoch,
            edge_index,
            config,
            self._entrance,
            self._preparation,
            self._book,
            self.outgoing,
            self._lives,
        )
        self._closing = Closing(
            epoch,
            self.sessions,
            self._entrance,
            self._admissions,
            self._questions,
            self.outgoing,
        )
        self._desk = ClientDesk(
            self.sessions,
            Greeter(self.sessions, self._preparation, config, version),
            self._closing,
            self._admissions,
            self._questions,
            self._book,
        )
        self.grammars = self._book.grammars
        self._grammar_answers = GrammarAnswers(epoch, self._admissions, self._book, self.outgoing)
        self._scheduler_answers = SchedulerAnswers(self._book)

    # From the shell.

    def on_model(self, model: TextModel) -> None:
        """Tokenizer and chat template are loaded."""
        self._preparation.model = model
        self._book.tokenizer = model.tokenizer
        self._preparation.begin_waiting()

    def open_session(self, session_id: int, now_ns: int, has_place: bool = False) -> None:
        """A client has connected; it may have a place of its own however many there are."""
        self.sessions.open(session_id, now_ns, has_place)

    def close_session(self, session_id: int) -> None:
        """A client is gone: its requests are cancelled."""
        session = self.sessions.close(session_id)
        if session is None:
            return
        for request in list(session.requests.values()):
            self._admissions.forget(request.request_id)
            self._book.drop(request)
        for question in list(session.questions.values()):
            self._questions.end(question)

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
        self._desk.on_frame(session_id, payload, now_ns)

    def on_job_done(self, job: PromptJob) -> None:
        """A job has run."""
        self._preparation.on_job_done(job)

    def vocabulary(self) -> SetVocabulary:
        """What a new grammar process must know. May be called on another thread, once there is a model."""
        model = self._preparation.model
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
                    self._scheduler_answers.take(message, now_ns)
            case EngineGeometry():
                self._preparation.geometry = message
                self._rows.vocab_size = self.grammars.vocab_size = message.vocab_size
                self._preparation.begin_waiting()
            case PeerRestarted():
                pass
            case Drain():
                self._closing.begin_drain(message)
            case EngineFailed():
                self._closing.fail(RequestError(message.message, message.code))
            case Shutdown():
                self._closing.shut()
                for session in self.sessions.slow:  # what was merged leaves now or never
                    self.on_caught_up(session.session_id)
                self.finished = True
            case _:
                assert_never(message)

    def tick(self, now_ns: int) -> int | None:
        """Work after a batch of input; returns when to be called again at the latest."""
        deadlines = [
            self._admissions.expire(now_ns),
            self._give_up_stalled(now_ns),
            self.sessions.turn_away_silent(now_ns),
            self.grammars.watch(now_ns),
        ]
        self._book.flush()
        deadlines.append(self._closing.tick(now_ns))
        self._book.meter.turn_ends(now_ns)
        self.outgoing += [("gpu_worker", masks) for masks in self.grammars.take_masks()]
        self.gauges["open_grammars"] = self.grammars.num_followed
        self.gauges["open_requests"] = self._entrance.num_open
        self.gauges["open_generations"] = len(self._book.requests)
        self.gauges["clients"] = len(self.sessions.by_id)
        return min((each for each in deadlines if each is not None), default=None)

    def _give_up_stalled(self, now_ns: int) -> int | None:
        stalled, again_ns = self.sessions.stalled(now_ns)
        for session in stalled:
            self.sessions.hang_ups.append(session.session_id)
            self.close_session(session.session_id)
        return again_ns
