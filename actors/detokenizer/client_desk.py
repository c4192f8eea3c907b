"""What clients send, frame by frame, and who takes it."""

from typing import assert_never

from pillion.actors.detokenizer.admissions import Admissions
from pillion.actors.detokenizer.client_frames import MalformedFrame, decode_frame
from pillion.actors.detokenizer.client_sessions import ClientSessions, Session
from pillion.actors.detokenizer.closing import Closing
from pillion.actors.detokenizer.greeting import Greeter
from pillion.actors.detokenizer.questions import Questions
from pillion.actors.detokenizer.request_book import RequestBook
from pillion.messages.text import (
    CancelRequest,
    DetokenizeRequest,
    EmbedRequest,
    GenerateRequest,
    Hello,
    HttpSpan,
    TokenizeRequest,
)
from pillion.runtime.errors import InvalidRequest, RequestError

_Request = (
    GenerateRequest | CancelRequest | EmbedRequest | TokenizeRequest | DetokenizeRequest | HttpSpan
)


class ClientDesk:
    """Every frame is answered, to its client alone."""

    def __init__(
        self,
        sessions: ClientSessions,
        greeter: Greeter,
        closing: Closing,
        admissions: Admissions,
        questions: Questions,
        book: RequestBook,
    ) -> None:
        self._sessions = sessions
        self._greeter = greeter
        self._closing = closing
        self._admissions = admissions
        self._questions = questions
        self._book = book

    def on_frame(self, session_id: int, payload: bytes, now_ns: int) -> None:
        """A frame of a client. Whatever is in it, the answer goes to this client and hurts nobody else."""
        session = self._sessions.by_id.get(session_id)
        if session is None:
            return
        try:
            message = decode_frame(payload)
        except MalformedFrame as error:
            if session.greeted:
                self._sessions.refuse(session_id, error.client_request_id, error)
            else:
                self._sessions.turn_away(session_id, error)
            return
        if isinstance(message, Hello):
            self._greeter.greet(session, message)
        elif session.greeted:
            self._on_request(session, message, len(payload), now_ns)
        else:
            self._sessions.turn_away(session_id, InvalidRequest("the first frame must be a Hello"))

    def _on_request(
        self, session: Session, message: _Request, size_bytes: int, now_ns: int
    ) -> None:
        if isinstance(message, CancelRequest):
            self._on_cancel(session, message, now_ns)
            return
        if isinstance(message, HttpSpan):
            self._book.traces.http_ends(message)
            return
        is_generation = isinstance(message, GenerateRequest)
        self._book.counters["requests_received"] += is_generation
        try:
            self._closing.check_open()
            match message:
                case GenerateRequest():
                    self._admissions.accept(session, message, size_bytes, now_ns)
                case TokenizeRequest() | DetokenizeRequest():
                    self._questions.ask(session, message, size_bytes)
                case EmbedRequest():
                    raise RequestError(
                        "this model generates text and has no embeddings", "unsupported"
                    )
                case _:
                    assert_never(message)
        except RequestError as error:
            self._book.counters["requests_refused"] += is_generation
            self._sessions.refuse(session.session_id, message.client_request_id, error)

    def _on_cancel(self, session: Session, cancel: CancelRequest, now_ns: int) -> None:
        # An id that is not open is no fault: the answer and the cancel have crossed each other.
        question = session.questions.get(cancel.client_request_id)
        if question is not None:
            self._questions.end(question)
        request = session.requests.get(cancel.client_request_id)
        if request is not None and request.num_running:
            self._admissions.forget(request.request_id)
            self._book.end_request(request, "abort", now_ns)
