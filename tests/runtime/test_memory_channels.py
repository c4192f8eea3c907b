"""The channels' twins within one process."""

import msgspec
import pytest

from pillion.messages.control import Drain, Shutdown
from pillion.runtime.memory_channels import MemoryPost, MemoryRing

UNION = Drain | Shutdown


def test_messages_arrive_in_order_and_wait_for_their_inbox() -> None:
    ring = MemoryRing()
    post = MemoryPost(ring)
    post.send("a", Drain(deadline_ns=1))
    inbox = ring.bind("a", UNION)
    post.send("a", Drain(deadline_ns=2))
    post.send("a", Shutdown())
    assert inbox.receive(None) == Drain(deadline_ns=1)
    assert inbox.drain() == [Drain(deadline_ns=2), Shutdown()]
    assert inbox.receive(None) is None
    assert inbox.drain() == []


def test_messages_pass_through_the_codec() -> None:
    ring = MemoryRing()
    message = Drain(deadline_ns=1)
    MemoryPost(ring).send("a", message)
    received = ring.bind("a", UNION).receive(0)
    assert received == message
    assert received is not message
    MemoryPost(ring).send_bytes("a", b"garbage")
    with pytest.raises(msgspec.DecodeError):
        ring.bind("a", UNION).drain()


def test_closing_loses_what_waits() -> None:
    ring = MemoryRing()
    inbox = ring.bind("a", UNION)
    post = MemoryPost(ring)
    post.send("a", Shutdown())
    inbox.close()
    post.close()
    assert inbox.receive(0) is None
