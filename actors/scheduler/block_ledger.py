"""What the KV manager is told about the blocks of each sequence."""

from array import array
from collections.abc import Callable, Iterable
from typing import Final

from pillion.actors.scheduler.leases import Leases
from pillion.actors.scheduler.limits import Limits
from pillion.actors.scheduler.sequence import Sequence
from pillion.actors.scheduler.term import Term
from pillion.messages.base import RingMessage
from pillion.messages.blocks import (
    CommitBlocks,
    FindPrefix,
    HeldBlocks,
    HeldSequence,
    PrefixFound,
    ReleaseBlocks,
)

# Sequences whose generated blocks are committed per tick; rows that started together fill blocks together.
MAX_COMMITS_PER_TICK: Final = 32


class BlockLedger:
    """Opens sequences at the KV manager, commits their full blocks, and gives all of them back."""

    def __init__(self, term: Term, limits: Limits, send: Callable[[RingMessage], None]) -> None:
        self.leases = Leases(term, limits, send)
        self._term = term
        self.block_size_tokens = limits.block_size_tokens
        self._num_groups = limits.num_groups
        self._send = send
        self._full: dict[Sequence, None] = {}  # have a full block to commit, oldest first

    def open(self, sequence: Sequence) -> PrefixFound | None:
        """Asks for the sequence's cached prefix. A sample that wants prompt logprobs computes all of it.

        Returns the answer if nothing can be found: then there is none to wait for.
        """
        use_cache = sequence.sampling.prompt_logprobs is None or sequence.has_produced
        miss_reason = "" if use_cache else "request"
        if sequence.num_tokens <= self.block_size_tokens:
            miss_reason = "short"
        self._send(
            FindPrefix(
                epoch=self._term.epoch,
                sequence_id=sequence.sequence_id,
                token_ids=sequence.token_ids.tobytes(),
                salt=sequence.request.salt,
                use_cache=use_cache,
                worker_epoch=self._term.worker_epoch,
                wants_answer=not miss_reason,
            )
        )
        if not miss_reason:
            return None
        return PrefixFound(
            epoch=self._term.epoch,
            sequence_id=sequence.sequence_id,
            block_ids=[b""] * self._num_groups,
            num_cached_tokens=0,
            miss_reason=miss_reason,
            worker_epoch=self._term.worker_epoch,
        )

    def found(self, sequence: Sequence, message: PrefixFound) -> None:
        """Writes: the sequence's blocks and how much is computed."""
        sequence.block_ids = [array("i", ids) for ids in message.block_ids]
        cached = message.num_cached_tokens
        sequence.capacity_tokens = cached
        sequence.num_computed_tokens = sequence.num_committed_tokens = cached
        sequence.next_commit_tokens = cached + self.block_size_tokens
        sequence.miss_reason = message.miss_reason

    def grow(self, sequence: Sequence, num_blocks: int) -> list["array[int]"]:
        """Puts leased blocks at the end of the sequence's table; returns them per group."""
        taken = self.leases.take(num_blocks)
        for table, block_ids in zip(sequence.block_ids, taken, strict=True):
            table.extend(block_ids)
        sequence.capacity_tokens += num_blocks * self.block_size_tokens
        return taken

    def note_full(self, sequence: Sequence) -> None:
        """The sequence has generated a full block; it is committed within some ticks."""
        self._full[sequence] = None

    def commit_some(self) -> bool:
        """Commits a bounded number of generated blocks; returns whether some are left."""
        for sequence in list(self._full)[:MAX_COMMITS_PER_TICK]:
            self.commit(sequence)
        return bool(self._full)

    def commit(self, sequence: Sequence) -> None:
        """Commits every full block whose KV is known to be written.

        Steps in flight write behind `num_computed_tokens` only, so never into one of these blocks.
        """
        self._full.pop(sequence, None)
        size = self.block_size_tokens
        start = sequence.num_committed_tokens
        end = sequence.num_computed_tokens // size * size
        if end <= start:
            return
        self._send(
            CommitBlocks(
                epoch=self._term.epoch,
                sequence_id=sequence.sequence_id,
                start=start,
                token_ids=sequence.token_ids[start:end].tobytes(),
                block_ids=[
                    table[start // size : end // size].tobytes() for table in sequence.block_ids
                ],
                worker_epoch=self._term.worker_epoch,
            )
        )
        sequence.num_committed_tokens = end
        sequence.next_commit_tokens = end + size

    def declare(self, sequences: Iterable[Sequence]) -> None:
        """Tells a new KV manager of all blocks: those of these sequences, and the lease."""
        size = self.block_size_tokens
        leased = [array("i", free) for free in self.leases.begin_again()]
        held: list[HeldSequence] = []
        for sequence in sequences:
            end = sequence.num_committed_tokens
            for block_ids, table in zip(leased, sequence.block_ids, strict=True):
                block_ids.extend(table[end // size :])
            held.append(
                HeldSequence(
                    sequence_id=sequence.sequence_id,
                    salt=sequence.request.salt,
                    token_ids=sequence.token_ids[:end].tobytes(),
                    block_ids=[table[: end // size].tobytes() for table in sequence.block_ids],
                )
            )
        self._send(
            HeldBlocks(
                epoch=self._term.epoch,
                leased=[block_ids.tobytes() for block_ids in leased],
                sequences=held,
                worker_epoch=self._term.worker_epoch,
            )
        )

    def release(self, sequence: Sequence, keep_content: bool = True) -> None:
        """Closes the sequence at the KV manager: no step in flight can write to its blocks any more.

        Its full blocks stay cached, unless the device's memory is not to be trusted. Writes: everything
        that the sequence knows about its blocks.
        """
        if keep_content:
            self.commit(sequence)
        self._full.pop(sequence, None)
        self._send(
            ReleaseBlocks(
                epoch=self._term.epoch,
                sequence_id=sequence.sequence_id,
                block_ids=[table.tobytes() for table in sequence.block_ids],
                worker_epoch=self._term.worker_epoch,
            )
        )
        sequence.forget_placement()
        self.leases.ask_again()
