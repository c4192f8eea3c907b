"""Leases: free blocks in the scheduler's hand, asked for ahead of need and given back when too many."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.term import Term
from pillion.messages.base import RingMessage
from pillion.messages.blocks import BlockLease, LeaseRequest, RecallLease, ReturnLease
from pillion.messages.codec import num_ids

# Fewer are not worth a message, unless the pool is tiny.
DOZEN: Final = 12


@dataclass(slots=True)
class _Lease:
    # An array and its slices are nothing that the garbage collector must look at.
    free: "array[int]" = field(default_factory=lambda: array("i"))
    num_asked: int = 0  # asked for and not received
    num_owed: int = 0  # of these the KV manager has said: not now, later


class Leases:
    """One lease per KV group. Sequences take the same number of blocks from each."""

    def __init__(self, term: Term, limits: Limits, send: Callable[[RingMessage], None]) -> None:
        self._term = term
        self._send = send
        self._leases = [_Lease() for _ in range(limits.num_groups)]
        self._dozen = min(DOZEN, max(1, limits.num_blocks // 8))

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, from every group."""
        return min(len(lease.free) for lease in self._leases)

    @property
    def num_leased(self) -> int:
        """Free blocks in all groups together."""
        return sum(len(lease.free) for lease in self._leases)

    @property
    def is_short(self) -> bool:
        """Whether the KV manager has seen everything that was asked for and cannot give all of it now."""
        return any(0 < lease.num_asked <= lease.num_owed for lease in self._leases)

    def take(self, num_blocks: int) -> list["array[int]"]:
        """Takes blocks out of each group's lease. There must be `num_free` or fewer."""
        taken = []
        for lease in self._leases:
            split = len(lease.free) - num_blocks
            taken.append(lease.free[split:])
            del lease.free[split:]
        return taken

    def on_lease(self, message: BlockLease) -> None:
        """Blocks arrive; late ones, which were withdrawn meanwhile, too."""
        lease = self._leases[message.group]
        lease.free.frombytes(message.block_ids)
        lease.num_asked = max(0, lease.num_asked - num_ids(message.block_ids))
        lease.num_owed = message.num_owed

    def on_recall(self, message: RecallLease) -> None:
        """Returns blocks that no sequence has; the shortfall that this makes is asked for again."""
        lease = self._leases[message.group]
        self._return(message.group, max(0, len(lease.free) - message.num_blocks))

    def reconcile(self, low: int, high: int) -> None:
        """Asks up to `high` when less than `low` is there or on its way; returns what is far beyond."""
        for group, lease in enumerate(self._leases):
            coming = len(lease.free) + lease.num_asked
            if coming < low:
                self._ask(group, max(high - coming, min(self._dozen, high)))
            elif lease.num_asked and len(lease.free) >= high:
                lease.num_asked = lease.num_owed = 0
                self._send(
                    LeaseRequest(
                        epoch=self._term.epoch,
                        group=group,
                        num_blocks=0,
                        worker_epoch=self._term.worker_epoch,
                    )
                )
            if len(lease.free) > 2 * high + self._dozen:
                self._return(group, high)

    def begin_again(self) -> list["array[int]"]:
        """The KV manager is new: nothing is asked for. Returns the free blocks that are here, per group."""
        for lease in self._leases:
            lease.num_asked = lease.num_owed = 0
        return [lease.free for lease in self._leases]

    def ask_again(self) -> None:
        """Blocks were given back while some are owed: makes sure that an answer tells what came of it.

        Until it arrives `is_short` is false, so that nobody is preempted for blocks that are on their way.
        """
        for group, lease in enumerate(self._leases):
            if 0 < lease.num_asked <= lease.num_owed:
                self._ask(group, 1)

    def _ask(self, group: int, num_blocks: int) -> None:
        self._leases[group].num_asked += num_blocks
        self._send(
            LeaseRequest(
                epoch=self._term.epoch,
                group=group,
                num_blocks=num_blocks,
                worker_epoch=self._term.worker_epoch,
            )
        )

    def _return(self, group: int, num_kept: int) -> None:
        lease = self._leases[group]
        block_ids = lease.free[num_kept:]
        if block_ids:
            del lease.free[num_kept:]
            self._send(
                ReturnLease(
                    epoch=self._term.epoch,
                    group=group,
                    block_ids=block_ids.tobytes(),
                    worker_epoch=self._term.worker_epoch,
                )
            )
