"""Replies keep their order, and none is lost with a task that no longer waits for it."""

import asyncio

import pytest

from pillion.messages.text import DetokenizeReply
from pillion.runtime.reply_queue import ReplyQueue

FIRST = DetokenizeReply(client_request_id="1", text="first")
SECOND = DetokenizeReply(client_request_id="2", text="second")


async def next_text(queue: ReplyQueue) -> str:
    while (reply := queue.get()) is None:
        await queue.arrival()
    assert isinstance(reply, DetokenizeReply)
    return reply.text


async def test_replies_come_in_their_order_whether_awaited_or_not() -> None:
    queue = ReplyQueue()
    assert queue.get() is None
    waiting = asyncio.create_task(next_text(queue))
    await asyncio.sleep(0)
    queue.put(FIRST)
    queue.put(SECOND)
    assert await waiting == "first"
    assert await next_text(queue) == "second"
    assert queue.get() is None


async def test_everyone_who_waits_gets_one() -> None:
    queue = ReplyQueue()
    waiting = [asyncio.create_task(next_text(queue)) for _ in range(2)]
    await asyncio.sleep(0)
    queue.put(FIRST)
    await asyncio.sleep(0)
    queue.put(SECOND)
    assert await asyncio.gather(*waiting) == ["first", "second"]


@pytest.mark.parametrize("comes_first", ["cancel", "reply"])
async def test_a_reply_outlives_the_task_that_waited_for_it(comes_first: str) -> None:
    queue = ReplyQueue()
    cancelled, patient = (asyncio.create_task(next_text(queue)) for _ in range(2))
    await asyncio.sleep(0)
    if comes_first == "cancel":
        cancelled.cancel()
        queue.put(FIRST)
    else:
        queue.put(FIRST)
        cancelled.cancel()
    assert await asyncio.wait_for(patient, 1.0) == "first"
    assert cancelled.cancelled() or await asyncio.wait({cancelled})
