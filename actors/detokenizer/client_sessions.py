"""Clients as the text edge knows them: one session per connection, one key per fair share."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import RequestFailed
from pillion.runtime.errors import RequestError

if TYPE_CHECKING:
    from pillion.actors.detokenizer.open_requests import OpenQuestion, OpenRequest, OpenSample

# A connection that takes nothing for so long is given up, its requests are cancelled.
STALLED_AFTER_NS: Final = 60 * 1_000_000_000
# The same for one for which so much text, ids and log-probabilities wait.
MAX_BACKLOG_BYTES: Final = 64 * 1024 * 1024
MAX_SESSIONS: Final = 1024


class Session:
    """One connection of a client."""

    __slots__ = (
        "backlog_bytes",
        "client_key",
        "dirty",
        "fairness_key",
        "greeted",
        "listed",
        "questions",
        "requests",
        "session_id",
        "slow_since_ns",
    )

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.greeted = False
        self.fairness_key = ""
        self.client_key = 0
        # By the client's own ids; a request stays until its last chunk is on its way.
        self.requests: dict[str, OpenRequest] = {}
        self.questions: dict[str, OpenQuestion] = {}
        # Samples with something to send, and whether this session is in the list of those to visit.
        self.dirty: list[OpenSample] = []
        self.listed = False
        # Since when the client has not taken what was sent, and what waits meanwhile.
        self.slow_since_ns: int | None = None
        self.backlog_bytes = 0


class ClientSessions:
    """All sessions, what goes out to them, and whom to hang up on."""

    def __init__(self) -> None:
        self.by_id: dict[int, Session] = {}
        self.replies: list[tuple[int, DaemonToClient]] = []
        # Connections to close once what was sent to them has left.
        self.hang_ups: list[int] = []
        self._shares: dict[str, tuple[int, int]] = {}  # fairness key -> client key, sessions
        self._next_client_key = 1

    def open(self, session_id: int) -> Session | None:
        """A new connection; None, with a refusal sent, if there are too many."""
        if len(self.by_id) >= MAX_SESSIONS:
            self.turn_away(
                session_id,
                RequestError(f"{MAX_SESSIONS} clients are connected", "overloaded", None, 1000),
            )
            return None
        session = self.by_id[session_id] = Session(session_id)
        return session

    def greet(self, session: Session, fairness_key: str) -> None:
        """The client has introduced itself: it shares with those of the same key, or has its own share."""
        session.greeted = True
        session.fairness_key = fairness_key
        client_key, count = self._shares.get(fairness_key, (0, 0))
        if not count:
            client_key = self._next_client_key
            self._next_client_key += 1
        session.client_key = client_key
        if fairness_key:
            self._shares[fairness_key] = (client_key, count + 1)

    def close(self, session_id: int) -> Session | None:
        """The connection is gone. Returns its session, if it had one."""
        session = self.by_id.pop(session_id, None)
        if session is not None and session.fairness_key:
            client_key, count = self._shares[session.fairness_key]
            if count == 1:
                del self._shares[session.fairness_key]
            else:
                self._shares[session.fairness_key] = (client_key, count - 1)
        return session

    def refuse(self, session_id: int, client_request_id: str, error: RequestError) -> None:
        """Sends RequestFailed."""
        self.replies.append(
            (
                session_id,
                RequestFailed(
                    client_request_id=client_request_id,
                    code=error.code,
                    message=str(error),
                    param=error.param,
                    retry_after_ms=error.retry_after_ms,
                ),
            )
        )

    def turn_away(self, session_id: int, error: RequestError) -> None:
        """Says why, and hangs up; what the client has open is cancelled when the connection is gone."""
        self.refuse(session_id, "", error)
        self.hang_ups.append(session_id)

    def stalled(self, now_ns: int) -> tuple[list[Session], int | None]:
        """Sessions whose client has stopped reading, and when to look again."""
        slow = [session for session in self.by_id.values() if session.slow_since_ns is not None]
        given_up = [session for session in slow if _is_stalled(session, now_ns)]
        return given_up, _earliest(slow, given_up)


def _is_stalled(session: Session, now_ns: int) -> bool:
    since = session.slow_since_ns
    return since is not None and (
        now_ns - since >= STALLED_AFTER_NS or session.backlog_bytes > MAX_BACKLOG_BYTES
    )


def _earliest(slow: Iterable[Session], without: list[Session]) -> int | None:
    times = [
        session.slow_since_ns + STALLED_AFTER_NS
        for session in slow
        if session.slow_since_ns is not None and session not in without
    ]
    return min(times, default=None)
