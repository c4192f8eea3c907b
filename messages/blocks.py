"""KV blocks: prefixes, leases, commits and releases between the scheduler and the KV manager.

Block ids are packed int32. A block is owned by exactly one of: the free list, a lease, one or more
sequences, the cache.

`worker_epoch` is the life of the worker whose memory a message is about. A new worker's memory is empty: both
sides forget every block, and what is about an older life is dropped.
"""

from typing import Final

import msgspec

from pillion.messages.base import RingMessage
from pillion.messages.ids import SequenceId

# Begins a salt that the scheduler made for one request. With prefix caching disabled these are the only
# salts under which blocks are shared, so that the samples of one request still share their prompt.
PRIVATE_SALT_PREFIX: Final = "\0request "


class FindPrefix(RingMessage, frozen=True):
    """Asks for the longest cached prefix, and opens the sequence at the KV manager until ReleaseBlocks.

    The blocks that the answer names are referenced by the sequence from then on.
    """

    epoch: int
    sequence_id: SequenceId
    token_ids: bytes
    salt: str
    use_cache: bool = True  # False: open only (prompt logprobs need every position computed)
    adapter: str = ""
    worker_epoch: int = 1
    wants_answer: bool = True  # False: open only, the sender knows that nothing can be found


class PrefixFound(RingMessage, frozen=True):
    """The longest prefix valid in every group; always shorter than the sequence, in whole blocks.

    `miss_reason` is "" when no longer prefix was possible, else one of: "disabled", "cold" (never seen),
    "evicted" (seen, since evicted), "diverged" (other tokens follow the shared prefix), "salt" (the same
    tokens are cached under another salt), "request" (the request asked for every position), "short"
    (less than one whole block).
    """

    epoch: int
    sequence_id: SequenceId
    block_ids: list[bytes]  # per group
    num_cached_tokens: int
    miss_reason: str
    worker_epoch: int = 1


class LeaseRequest(RingMessage, frozen=True):
    """The scheduler wants to hold this many more blocks. A shortfall stays owed until it is met or withdrawn."""

    epoch: int
    group: int
    num_blocks: int  # 0 withdraws what is still owed
    worker_epoch: int = 1


class BlockLease(RingMessage, frozen=True):
    """Blocks that now belong to the scheduler; maybe fewer than asked for, maybe none."""

    epoch: int
    group: int
    block_ids: bytes
    num_owed: int  # will follow as soon as blocks come free
    worker_epoch: int = 1


class RecallLease(RingMessage, frozen=True):
    """Another group needs memory: please return up to this many blocks that no sequence uses."""

    epoch: int
    group: int
    num_blocks: int
    worker_epoch: int = 1


class ReturnLease(RingMessage, frozen=True):
    """Leased blocks, never written since they were leased or no longer needed, come back."""

    epoch: int
    group: int
    block_ids: bytes
    worker_epoch: int = 1


class CommitBlocks(RingMessage, frozen=True):
    """Full blocks of a sequence hold these tokens now, in every group: other sequences may share them.

    Commits of one sequence follow each other without a gap, starting behind its cached prefix. The blocks
    pass from the lease to the sequence.
    """

    epoch: int
    sequence_id: SequenceId
    start: int  # position of the first token, a multiple of the block size
    token_ids: bytes  # a whole number of blocks
    block_ids: list[bytes]  # per group
    worker_epoch: int = 1


class ReleaseBlocks(RingMessage, frozen=True):
    """The sequence is over or preempted: all its blocks, in table order, cached ones included.

    Blocks that were never committed (the last, partly filled one) are freed, the others stay cached.
    """

    epoch: int
    sequence_id: SequenceId
    block_ids: list[bytes]  # per group
    worker_epoch: int = 1


class HeldSequence(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An open sequence and its committed blocks, cached prefix included."""

    sequence_id: SequenceId
    salt: str
    token_ids: bytes  # that the committed blocks hold
    block_ids: list[bytes]  # per group
    adapter: str = ""


class HeldBlocks(RingMessage, frozen=True):
    """All that the scheduler has, for a KV manager that begins again: the first message that this life gets.

    Everything else is free from then on. FindPrefix of sequences that wait for their answer is sent again.
    """

    epoch: int
    leased: list[bytes]  # per group: in the scheduler's hand, or of a sequence and not committed
    sequences: list[HeldSequence]
    worker_epoch: int = 1
