"""Faults of the text edge, on demand, for tests.

Flag (runtime/fault_flags.py): `drop_connection=N` loses the connection that has got the Nth write, as when a
socket breaks. `epoch=E` says in which life, 1 if not said.
"""

from collections.abc import Callable, Iterable

from pillion.actors.detokenizer.client_server import ClientServer
from pillion.actors.detokenizer.text_edge import TextEdge
from pillion.messages.inboxes import DaemonToClient
from pillion.runtime.errors import ConfigError
from pillion.runtime.fault_flags import fault_flags_of
from pillion.runtime.process import ActorContext


def client_server(context: ActorContext, edge: TextEdge, wake: Callable[[], None]) -> ClientServer:
    """The server of this life of the edge. Raises ConfigError for a fault that there is not."""
    drops = set()
    for flag in fault_flags_of(context.config, context.name):
        if (
            flag.fault != "drop_connection"
            or flag.value is None
            or flag.conditions.keys() - {"epoch"}
        ):
            raise ConfigError(f"fault_flags: the text edge knows drop_connection=N, got {flag}")
        if flag.conditions.get("epoch", 1) == context.epoch:
            drops.add(flag.value)
    argument = context.run_dir.argument
    if drops:
        return _DroppingServer(edge, wake, argument, drops)
    return ClientServer(edge, wake, argument)


class _DroppingServer(ClientServer):
    """Counts writes, and loses the connections of some."""

    def __init__(
        self, edge: TextEdge, wake: Callable[[], None], actors_argument: str, drops: set[int]
    ) -> None:
        super().__init__(edge, wake, actors_argument)
        self._drops = drops
        self._num_writes = 0

    def send(self, replies: Iterable[tuple[int, DaemonToClient]]) -> None:
        """As ClientServer, and then the fault."""
        replies = list(replies)
        super().send(replies)
        for session_id in dict.fromkeys(session_id for session_id, _ in replies):
            self._num_writes += 1
            if self._num_writes in self._drops:
                self.lose(session_id)
