"""Which life of each peer counts."""

from collections.abc import Mapping

from pillion.messages.base import RingMessage
from pillion.messages.inboxes import life_in


class Lives:
    """The latest known epoch of each peer. A message of an older one is stale; a newer one begins a life.

    The first sign of a new life is the end of the old one, whether it is the launcher's PeerRestarted or a
    message of the peer itself, whichever is faster.
    """

    def __init__(self, epochs: Mapping[str, int] | None = None) -> None:
        """`epochs` has the peers that are not in their first life."""
        self._epochs = dict(epochs or {})

    def __getitem__(self, actor: str) -> int:
        return self._epochs.get(actor, 1)

    def is_stale(self, message: RingMessage) -> bool:
        """Whether it comes from a life that is over."""
        life = life_in(message)
        return life is not None and life[1] < self[life[0]]

    def begun_by(self, message: RingMessage) -> str | None:
        """The peer of whose new life this message is the first sign. Writes: its epoch."""
        life = life_in(message)
        return life[0] if life is not None and self.adopt(*life) else None

    def adopt(self, actor: str, epoch: int) -> bool:
        """Takes somebody's word for an epoch of a peer; returns whether that life is new."""
        if epoch <= self[actor]:
            return False
        self._epochs[actor] = epoch
        return True
