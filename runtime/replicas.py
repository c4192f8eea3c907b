"""The daemons that a client may use, one at a time."""

from collections.abc import Sequence
from pathlib import Path


class Replicas:
    """Whose turn it is. Whoever is of no use is left for the next one, round and round."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Their clients' sockets, the one to try first first."""
        self._paths = tuple(paths)
        self._num_left = 0

    @property
    def path(self) -> Path:
        """Of the one whose turn it is."""
        return self._paths[self._num_left % len(self._paths)]

    @property
    def begins_round(self) -> bool:
        """Whether it is the first one's turn."""
        return self._num_left % len(self._paths) == 0

    @property
    def ends_round(self) -> bool:
        """Whether behind this one the first one's turn comes again."""
        return (self._num_left + 1) % len(self._paths) == 0

    def leave(self) -> None:
        """This one cannot be reached, or takes nothing any more."""
        self._num_left += 1
