"""The order of eviction, and the bounded memory of what was evicted."""

import pytest

from pillion.actors.kv_manager.eviction import EvictedPrefixes, IdleNodes
from pillion.actors.kv_manager.prefix_index import Node


def test_the_node_that_was_pushed_first_goes_first_unless_it_was_used_again() -> None:
    idle = IdleNodes()
    first, second, third = (Node("", bytes([number]), None, number) for number in range(3))
    for node in (first, second, third):
        idle.push(node)
    idle.remove(first)
    idle.push(first)
    assert idle.in_order() == [second, third, first]
    assert [idle.pop() for _ in range(3)] == [second, third, first]
    with pytest.raises(KeyError):
        idle.pop()


@pytest.mark.parametrize("capacity", [1, 2, 10, 101])
def test_the_latest_evictions_are_remembered_in_bounded_memory(capacity: int) -> None:
    evicted = EvictedPrefixes(capacity)
    names = [number.to_bytes(16, "little") for number in range(5 * capacity)]
    for count, name in enumerate(names, start=1):
        evicted.add("salt", name)
        assert len(evicted) <= max(capacity, 2)
        latest = names[max(0, count - max(1, capacity // 2)) : count]
        assert all(evicted.seen("salt", late) for late in latest)
    assert not evicted.seen("salt", names[0])
    assert not evicted.seen("other", names[-1])
