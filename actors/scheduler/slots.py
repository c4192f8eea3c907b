"""Slots of the worker's state table, and how often each has been used."""

from pillion.runtime.errors import InvariantBroken


class SlotTable:
    """Hands out slots. The generation tells a slot's tenants apart, so late rows never hit the next one."""

    def __init__(self, num_slots: int) -> None:
        self._generations = [0] * num_slots
        self.free_all()

    @property
    def num_free(self) -> int:
        """Slots without a tenant."""
        return len(self._free)

    def take(self) -> tuple[int, int]:
        """A free slot and its new generation, from 1 up. Low slots come first after a start."""
        slot = self._free.pop()
        self._taken[slot] = True
        self._generations[slot] += 1
        return slot, self._generations[slot]

    def free(self, slot: int) -> None:
        """The plan that is being built releases the slot; the same plan may give it to the next tenant."""
        if not self._taken[slot]:
            raise InvariantBroken(f"slot {slot} is freed and was not taken")
        self._taken[slot] = False
        self._free.append(slot)

    def free_all(self) -> None:
        """The worker's table is empty. Generations go on, so that what is late is of nobody."""
        num_slots = len(self._generations)
        self._free = list(range(num_slots - 1, -1, -1))
        self._taken = [False] * num_slots
