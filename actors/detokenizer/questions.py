"""Questions of clients that the text edge answers by itself: for the tokens of a text, and the other way round."""

from functools import partial

from pillion.actors.detokenizer.client_sessions import ClientSessions, Session
from pillion.actors.detokenizer.entrance import Entrance
from pillion.actors.detokenizer.open_requests import OpenQuestion
from pillion.actors.detokenizer.preparation import Preparation, Task
from pillion.actors.detokenizer.prompt_jobs import PromptJob, detokenize, lane_of, tokenize
from pillion.actors.detokenizer.request_checks import check_question
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.control import EngineGeometry
from pillion.messages.text import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from pillion.runtime.errors import RequestError


class Questions:
    """Those that are open, until they are answered or nobody wants the answer."""

    def __init__(
        self,
        sessions: ClientSessions,
        entrance: Entrance,
        preparation: Preparation,
        questions: dict[int, OpenQuestion],
    ) -> None:
        """`questions`: to be filled with those that are open."""
        self._sessions = sessions
        self._entrance = entrance
        self._preparation = preparation
        self._open = questions

    def ask(
        self, session: Session, message: TokenizeRequest | DetokenizeRequest, size_bytes: int
    ) -> None:
        """Takes a question in. Raises RequestError if it is refused."""
        self._entrance.check(session, message.client_request_id)
        check_question(message)
        question_id = self._entrance.take_ids(1)
        question = OpenQuestion(question_id, session, message)
        self._open[question_id] = question
        session.questions[message.client_request_id] = question
        task = Task(
            lane_of(message, size_bytes),
            partial(_answer_of, message),
            partial(self._on_answer, question),
        )
        self._preparation.begin(question_id, task)

    def end(self, question: OpenQuestion) -> None:
        """The question is answered, or nobody wants the answer."""
        self._preparation.forget(question.question_id)
        self._open.pop(question.question_id, None)
        question.session.questions.pop(question.message.client_request_id, None)

    def end_all(self, error: RequestError) -> None:
        """Ends every question that is open with this error."""
        for question in list(self._open.values()):
            self._refuse(question, error)

    def _on_answer(self, question: OpenQuestion, job: PromptJob) -> None:
        if job.error is not None:
            self._refuse(question, job.error)
            return
        self._sessions.replies.append((question.session.session_id, job.result))
        self.end(question)

    def _refuse(self, question: OpenQuestion, error: RequestError) -> None:
        self._sessions.refuse(
            question.session.session_id, question.message.client_request_id, error
        )
        self.end(question)


def _answer_of(
    message: TokenizeRequest | DetokenizeRequest, model: TextModel, geometry: EngineGeometry
) -> TokenizeReply | DetokenizeReply:
    if isinstance(message, TokenizeRequest):
        return tokenize(model, message, geometry.max_model_len)
    return detokenize(model, message, geometry.vocab_size)
