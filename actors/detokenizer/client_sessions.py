"""Clients as the text edge knows them: one session per connection, one key per fair share."""

from typing import TYPE_CHECKING, Final

from pillion.messages.inboxes import DaemonToClient
from pillion.messages.text import RequestFailed
from pillion.runtime.errors import InvalidRequest, RequestError

if TYPE_CHECKING:
    from pillion.actors.detokenizer.open_requests import OpenQuestion, OpenRequest, OpenSample

# A connection that takes nothing for so long is given up, its requests are cancelled.
STALLED_AFTER_NS: Final = 60 * 1_000_000_000
# The same for one for which so much text, ids and log-probabilities wait.
MAX_BACKLOG_BYTES: Final = 64 * 1024 * 1024
MAX_SESSIONS: Final = 1024
# A connection has so long to say who it is.
HELLO_WITHIN_NS: Final = 10 * 1_000_000_000


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

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self.by_id: dict[int, Session] = {}
        self.replies: list[tuple[int, DaemonToClient]] = []
        self._slow: dict[int, Session] = {}
        # By session: until when it must have said Hello, in this order.
        self._silent: dict[int, int] = {}
        # Connections to close once what was sent to them has left.
        self.hang_ups: list[int] = []
        self._shares: dict[str, tuple[int, int]] = {}  # fairness key -> client key, sessions
        self._next_client_key = 1

    @property
    def is_full(self) -> bool:
        """Whether there is no place for one more client."""
        return len(self.by_id) >= self._max_sessions

    def open(self, session_id: int, now_ns: int, has_place: bool = False) -> None:
        """A new connection. It is refused if there are too many, unless a place is kept for it."""
        if self.is_full and not has_place:
            count = len(self.by_id)
            error = RequestError(f"{count} clients are connected", "overloaded", None, 1000)
            self.turn_away(session_id, error)
            return
        self.by_id[session_id] = Session(session_id)
        self._silent[session_id] = now_ns + HELLO_WITHIN_NS

    def greet(self, session: Session, fairness_key: str) -> None:
        """The client has introduced itself: it shares with those of the same key, or has its own share."""
        session.greeted = True
        self._silent.pop(session.session_id, None)
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
        self._slow.pop(session_id, None)
        self._silent.pop(session_id, None)
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

    def turn_away_silent(self, now_ns: int) -> int | None:
        """Hangs up on connections that have not said Hello in time. Returns when to look again."""
        for session_id, deadline_ns in list(self._silent.items()):
            if now_ns < deadline_ns:
                return deadline_ns
            del self._silent[session_id]
            seconds = HELLO_WITHIN_NS // 1_000_000_000
            self.turn_away(session_id, InvalidRequest(f"no Hello came within {seconds} s"))
        return None

    def note_slow(self, session_id: int, now_ns: int) -> None:
        """The client does not take what was sent."""
        session = self.by_id.get(session_id)
        if session is not None and session.slow_since_ns is None:
            session.slow_since_ns = now_ns
            self._slow[session_id] = session

    def note_caught_up(self, session_id: int) -> Session | None:
        """The client has taken what was sent. Returns its session, if it is still there."""
        session = self._slow.pop(session_id, None)
        if session is not None:
            session.slow_since_ns = None
        return session

    @property
    def slow(self) -> list[Session]:
        """Those that have not taken what was sent; more may be merged for them."""
        return list(self._slow.values())

    def stalled(self, now_ns: int) -> tuple[list[Session], int | None]:
        """Sessions whose client has stopped reading, and when to look again."""
        given_up: list[Session] = []
        again_ns: int | None = None
        for session in self._slow.values():
            deadline_ns = (session.slow_since_ns or 0) + STALLED_AFTER_NS
            if now_ns >= deadline_ns or session.backlog_bytes > MAX_BACKLOG_BYTES:
                given_up.append(session)
            elif again_ns is None or deadline_ns < again_ns:
                again_ns = deadline_ns
        return given_up, again_ns
