"""The channels of runtime/channels.py within one process: whole engines as plain objects, for tests.

Messages still pass through the codec, so that what works here works on the wire.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from pillion.messages.base import RingMessage
from pillion.messages.codec import Codec

T = TypeVar("T")


class MemoryRing:
    """Every inbox of an engine, by actor name and life. Messages wait until the inbox is bound."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], deque[bytes]] = {}

    def queue(self, actor: str, epoch: int = 1) -> deque[bytes]:
        """The frames that wait at this life of an actor."""
        return self._queues.setdefault((actor, epoch), deque())

    def bind(self, actor: str, union: Any, epoch: int = 1) -> "MemoryInbox[Any]":
        """The inbox of one life of an actor."""
        return MemoryInbox(self.queue(actor, epoch), Codec(union))


class MemoryInbox(Generic[T]):
    """The twin of channels.Inbox. Nothing arrives while its only thread waits, so it never waits."""

    def __init__(self, frames: deque[bytes], codec: Codec[T]) -> None:
        self._frames = frames
        self._codec = codec

    def receive(self, timeout_ns: int | None) -> T | None:
        """The next message, or None at once."""
        return self._codec.decode(self._frames.popleft()) if self._frames else None

    def drain(self) -> list[T]:
        """All messages that are there."""
        messages = [self._codec.decode(frame) for frame in self._frames]
        self._frames.clear()
        return messages

    def close(self) -> None:
        """Loses what was not received."""
        self._frames.clear()


class MemoryPost:
    """The twin of channels.Post."""

    def __init__(self, ring: MemoryRing, epochs: Mapping[str, int] | None = None) -> None:
        self._ring = ring
        self._epochs = dict(epochs or {})
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, destination: str, message: RingMessage) -> None:
        """Queues a message for an actor."""
        self.send_bytes(destination, self._encoder.encode(message))

    def send_bytes(self, destination: str, data: bytes) -> None:
        """Queues a message that is encoded already."""
        self._ring.queue(destination, self._epochs.get(destination, 1)).append(data)

    def is_newer(self, actor: str, epoch: int) -> bool:
        """Whether this is a later life of the actor than the one that messages go to."""
        return epoch > self._epochs.get(actor, 1)

    def follow(self, actor: str, epoch: int) -> None:
        """From now on messages go to this life of the actor."""
        self._epochs[actor] = epoch

    def close(self) -> None:
        """Nothing to do: what was sent has arrived."""
