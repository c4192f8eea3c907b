"""What the scheduler has to say to the KV manager, and when it leaves."""

from typing import Final

from pillion.messages.base import RingMessage
from pillion.messages.blocks import CommitBlocks, FindPrefix, ReleaseBlocks

# So long the KV manager need not hear of what it does not answer: who is woken while a worker waits for its plan or a
# client for its token takes a core from them, and one turn for all costs less than one for each.
PATIENCE_NS: Final = 50_000_000
# So many do not wait: to send them takes as long as a turn should.
MAX_WAITING: Final = 32


class KvMail:
    """Messages to the KV manager. They leave in order and together: at once if one wants an answer."""

    def __init__(self, outgoing: list[tuple[str, RingMessage]]) -> None:
        self.due_ns: int | None = None  # when to come again; None: nothing waits
        self._outgoing = outgoing
        self._messages: list[RingMessage] = []
        self._is_urgent = False

    @property
    def frees_blocks(self) -> bool:
        """Whether something waits by which blocks come free."""
        return any(isinstance(message, ReleaseBlocks) for message in self._messages)

    def add(self, message: RingMessage) -> None:
        """Puts a message behind the others."""
        self._messages.append(message)
        match message:
            case FindPrefix():
                wants_answer = message.wants_answer
            case CommitBlocks() | ReleaseBlocks():
                wants_answer = False
            case _:
                wants_answer = True
        self._is_urgent |= wants_answer or len(self._messages) >= MAX_WAITING

    def leave_if_due(self, now_ns: int) -> None:
        """At the end of a turn. Writes: `outgoing`."""
        if self._messages and self.due_ns is None:
            self.due_ns = now_ns + PATIENCE_NS
        if self._is_urgent or (self.due_ns is not None and now_ns >= self.due_ns):
            self._outgoing += [("kv_manager", message) for message in self._messages]
            self.drop()

    def drop(self) -> None:
        """Nothing waits any more."""
        self._messages.clear()
        self._is_urgent, self.due_ns = False, None
