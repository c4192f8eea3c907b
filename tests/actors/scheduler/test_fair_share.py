"""Counters of clients: what is remembered of whom, and for how long."""

from pillion.actors.scheduler.fair_share import MAX_IDLE_CLIENTS, FairShare


def test_a_newcomer_starts_where_the_others_are() -> None:
    share = FairShare()
    old = share.join(1, 1)
    share.charge(old, 500)
    share.charge(old, 500)
    assert share.join(2, 1).served == 500


def test_idle_time_is_not_saved_up_and_debt_is_not_forgotten() -> None:
    share = FairShare()
    busy, greedy = share.join(1, 2), share.join(2, 1)
    share.charge(greedy, 1000)
    share.leave(greedy)
    assert share.join(2, 1).served == 1000
    share.leave(greedy)
    for _ in range(5):
        share.charge(busy, 300)
    assert share.join(2, 1).served == 1200


def test_nothing_is_kept_of_clients_that_are_gone() -> None:
    share = FairShare()
    for key in range(100):
        client = share.join(key, 3)
        share.charge(client, key)
        for _ in range(3):
            share.leave(client)
    assert len(share) == 0
    assert share.join(1, 1).served == 0


def test_idle_counters_are_bounded_beside_one_that_never_ends() -> None:
    share = FairShare()
    share.join(0, 1)
    for key in range(1, 5000):
        client = share.join(key, 1)
        client.served += 1000
        share.leave(client)
    assert len(share) <= MAX_IDLE_CLIENTS + 1


def test_a_counter_that_the_others_have_passed_is_dropped() -> None:
    share = FairShare()
    busy = share.join(0, 1)
    client = share.join(1, 1)
    busy.served = 1000
    share.charge(busy, 10)
    share.leave(client)
    assert len(share) == 1
