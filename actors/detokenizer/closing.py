"""How a text edge ends: it takes nothing new, waits for what is open, and ends what is left."""

from typing import Final

from pillion.actors.detokenizer.admissions import Admissions
from pillion.actors.detokenizer.client_sessions import ClientSessions
from pillion.actors.detokenizer.entrance import Entrance
from pillion.actors.detokenizer.questions import Questions
from pillion.messages.base import RingMessage
from pillion.messages.control import Drain, Drained
from pillion.messages.text import GenerateChunk
from pillion.runtime.errors import RequestError

_STOPPING: Final = "the daemon is stopping"


class Closing:
    """Open until it is told to drain, to fail or to stop."""

    def __init__(
        self,
        epoch: int,
        sessions: ClientSessions,
        entrance: Entrance,
        admissions: Admissions,
        questions: Questions,
        outgoing: list[tuple[str, RingMessage]],
    ) -> None:
        self._epoch = epoch
        self._sessions = sessions
        self._entrance = entrance
        self._admissions = admissions
        self._questions = questions
        self._outgoing = outgoing
        self._because: str | None = None
        self._deadline_ns: int | None = None
        self._drained = False

    def check_open(self) -> None:
        """Raises RequestError if nothing new is taken."""
        if self._because is not None:
            raise RequestError(self._because, "unavailable")

    def begin_drain(self, drain: Drain) -> None:
        """What is open may go on until the deadline."""
        self._because = _STOPPING
        self._deadline_ns = drain.deadline_ns

    def fail(self, error: RequestError) -> None:
        """The engine has failed: everything ends with its reason."""
        self._because = str(error)
        self._end_all(error)

    def shut(self) -> None:
        """Everything ends now."""
        self._because = self._because or _STOPPING
        self._end_all(RequestError(self._because, "unavailable"))

    def tick(self, now_ns: int) -> int | None:
        """Reports when nothing is open and slow clients have all; at the deadline what is left ends with an error."""
        if self._deadline_ns is None or self._drained:
            return None
        if now_ns >= self._deadline_ns:
            error = RequestError(_STOPPING, "unavailable")
            self._end_all(error, tell_scheduler=True)
        elif self._entrance.num_open or self._sessions.slow:
            return self._deadline_ns
        elif any(isinstance(message, GenerateChunk) for _, message in self._sessions.replies):
            return now_ns  # the last ones leave behind this turn; then their clients may be slow
        self._drained = True
        self._outgoing.append(("launcher", Drained(actor="detokenizer", epoch=self._epoch)))
        return None

    def _end_all(self, error: RequestError, tell_scheduler: bool = False) -> None:
        self._admissions.end_all(error, tell_scheduler)
        self._questions.end_all(error)
