"""The queue's order, and that its operations stay consistent in any sequence."""

import random
from array import array

from fake_edge import make_sampling

from pillion.actors.scheduler.fair_share import Client
from pillion.actors.scheduler.queues import WaitingQueue
from pillion.actors.scheduler.sequence import Request, Sequence


def waiting(
    sequence_id: int, client: Client, num_tokens: int = 10, priority: int = 0, arrival: int = 0
) -> Sequence:
    request = Request(
        request_id=sequence_id,
        client=client,
        arrival_time_ns=arrival or sequence_id,
        deadline_ns=None,
        priority=priority,
        salt="",
        num_prompt_tokens=num_tokens,
    )
    return Sequence(
        sequence_id=sequence_id,
        request=request,
        sampling=make_sampling(5),
        token_ids=array("i", range(num_tokens)),
        max_total_tokens=num_tokens + 5,
    )


def drain(queue: WaitingQueue) -> list[int]:
    """Serves everyone; each costs its client its tokens."""
    order = []
    while (sequence := queue.pop()) is not None:
        order.append(sequence.sequence_id)
        sequence.request.client.served += sequence.num_tokens
    return order


def test_priority_then_share_then_arrival() -> None:
    queue, a, b = WaitingQueue(), Client(1, 0), Client(2, 0)
    for sequence in (
        waiting(1, a, priority=1),
        waiting(2, a),
        waiting(3, a),
        waiting(4, b),
        waiting(5, b, priority=-1),
    ):
        queue.push(sequence)
    # 5 has cost client b ten tokens, so a's two come before b's.
    assert drain(queue) == [5, 2, 3, 4, 1]


def test_a_short_prompt_of_another_client_goes_before_a_long_one() -> None:
    queue = WaitingQueue()
    for number in range(5):
        queue.push(waiting(number, Client(number, 0), num_tokens=1000))
    queue.push(waiting(9, Client(9, 0), num_tokens=5))
    assert drain(queue) == [9, 0, 1, 2, 3, 4]


def test_service_while_waiting_counts() -> None:
    queue, a, b = WaitingQueue(), Client(1, 0), Client(2, 0)
    queue.push(waiting(1, a))
    queue.push(waiting(2, b))
    a.served = 100  # generated tokens of what runs already
    first = queue.peek()
    assert first is not None
    assert first.sequence_id == 2
    assert drain(queue) == [2, 1]


def test_a_preempted_sequence_has_its_old_place() -> None:
    queue, client = WaitingQueue(), Client(1, 0)
    for sequence_id in (5, 6, 7):
        queue.push(waiting(sequence_id, client))
    queue.push(waiting(1, client))
    assert drain(queue) == [1, 5, 6, 7]


def test_a_client_that_comes_back_is_not_mistaken_for_its_old_self() -> None:
    queue, client = WaitingQueue(), Client(1, 0)
    for sequence_id in (1, 2, 3):
        sequence = waiting(sequence_id, client)
        queue.push(sequence)
        queue.remove(sequence)
    assert (len(queue), queue.peek(), queue.pop()) == (0, None, None)
    queue.push(waiting(4, client))
    assert drain(queue) == [4]


def test_any_sequence_of_operations_agrees_with_a_plain_search() -> None:
    chance = random.Random(5)
    queue = WaitingQueue()
    clients = [Client(key, 0) for key in range(8)]
    here: list[Sequence] = []

    def first() -> Sequence:
        def key(sequence: Sequence) -> tuple[int, ...]:
            client, priority = sequence.request.client, sequence.request.priority
            head = min(
                (s for s in here if s.request.client is client and s.request.priority == priority),
                key=lambda s: s.rank,
            )
            finish = client.served + head.num_tokens
            return (priority, finish, *head.rank[1:], *sequence.rank)

        return min(here, key=key)

    for number in range(1500):
        what = chance.random()
        if (what < 0.45 and len(here) < 60) or not here:
            sequence = waiting(
                number,
                chance.choice(clients),
                chance.randint(1, 30),
                chance.randint(0, 2),
                chance.randint(1, 500),
            )
            here.append(sequence)
            queue.push(sequence)
        elif what < 0.6:
            sequence = here.pop(chance.randrange(len(here)))
            queue.remove(sequence)
        elif what < 0.8:
            chance.choice(clients).served += chance.randint(1, 40)
        else:
            expected = first()
            assert queue.pop() is expected
            here.remove(expected)
            expected.request.client.served += expected.num_tokens
        assert len(queue) == len(here)
        assert len(queue._heap) <= 2 * len(queue._lanes) + 66
