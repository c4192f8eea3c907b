"""Slots and their generations."""

import pytest

from pillion.actors.scheduler.slots import SlotTable
from pillion.runtime.errors import InvariantBroken


def test_each_tenant_of_a_slot_has_its_own_generation() -> None:
    slots = SlotTable(2)
    assert [slots.take(), slots.take()] == [(0, 1), (1, 1)]
    assert slots.num_free == 0
    slots.free(0)
    assert slots.take() == (0, 2)


def test_a_slot_cannot_be_freed_twice() -> None:
    slots = SlotTable(2)
    slot, _ = slots.take()
    slots.free(slot)
    with pytest.raises(InvariantBroken, match="slot 0"):
        slots.free(slot)
    assert slots.num_free == 2


def test_generations_go_on_when_all_slots_are_free_again() -> None:
    slots = SlotTable(2)
    slots.take()
    slots.free_all()
    assert slots.num_free == 2
    assert slots.take() == (0, 2)
