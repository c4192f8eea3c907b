"""Who has had how much: virtual token counters, so that no client starves another."""

from dataclasses import dataclass
from typing import Final

PREFILL_TOKEN_COST: Final = 1
# A generated token occupies a whole step's row; a prefill token shares its step with many others.
DECODE_TOKEN_COST: Final = 2
# Idle clients whose counters still mean something; beyond these the least served are forgotten.
MAX_IDLE_CLIENTS: Final = 1024


@dataclass(slots=True, eq=False)
class Client:
    """Everyone who gave the same client key. `served` only grows; the least served client goes first.

    Prompt tokens count whether cached or not, so that the share does not depend on luck in the cache.
    """

    key: int
    served: int
    num_open: int = 0  # sequences that have not ended


class FairShare:
    """The clients that have open sequences, and those that had more than their share a moment ago.

    The virtual time is the counter of the client that was served last. Nobody joins with less than it, so
    idle time cannot be saved up; a counter at or below it says nothing and is dropped.
    """

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self._idle: dict[int, Client] = {}
        self._virtual_time = 0

    def __len__(self) -> int:
        """Counters kept."""
        return len(self._clients) + len(self._idle)

    def join(self, key: int, num_sequences: int) -> Client:
        """The client of this key; it has this many more open sequences now, at least one."""
        client = self._clients.get(key)
        if client is None:
            client = self._idle.pop(key, None) or Client(key, 0)
            client.served = max(client.served, self._virtual_time)
            self._clients[key] = client
        client.num_open += num_sequences
        return client

    def leave(self, client: Client) -> None:
        """One of the client's sequences has ended."""
        client.num_open -= 1
        if client.num_open:
            return
        del self._clients[client.key]
        if not self._clients:
            self._idle.clear()
            self._virtual_time = 0
        elif client.served > self._virtual_time:
            self._idle[client.key] = client
            if len(self._idle) > MAX_IDLE_CLIENTS:
                self._forget()

    def charge(self, client: Client, num_prompt_tokens: int) -> None:
        """The client's turn: its next prompt is on the way to the device."""
        self._virtual_time = max(self._virtual_time, client.served)
        client.served += num_prompt_tokens * PREFILL_TOKEN_COST

    def _forget(self) -> None:
        by_service = sorted(self._idle.values(), key=lambda client: client.served)
        telling = [client for client in by_service if client.served > self._virtual_time]
        self._idle = {client.key: client for client in telling[-MAX_IDLE_CLIENTS // 2 :]}
