"""KV blocks: prefixes, leases, commits and releases between the scheduler and the KV manager.

Block ids are packed int32. A block is owned by exactly one of: the free list, a lease, one or more
sequences, the cache.
"""

from typing import Final

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


class LeaseRequest(RingMessage, frozen=True):
    """The scheduler wants to hold this many more blocks. A shortfall stays owed until it is met or withdrawn."""

    epoch: int
    group: int
    num_blocks: int  # 0 withdraws what is still owed


class BlockLease(RingMessage, frozen=True):
    """Blocks that now belong to the scheduler; maybe fewer than asked for, maybe none."""

    epoch: int
    group: int
    block_ids: bytes
    num_owed: int  # will follow as soon as blocks come free


class RecallLease(RingMessage, frozen=True):
    """Another group needs memory: please return up to this many blocks that no sequence uses."""

    epoch: int
    group: int
    num_blocks: int


class ReturnLease(RingMessage, frozen=True):
    """Leased blocks, never written since they were leased or no longer needed, come back."""

    epoch: int
    group: int
    block_ids: bytes


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


class ReleaseBlocks(RingMessage, frozen=True):
    """The sequence is over or preempted: all its blocks, in table order, cached ones included.

    Blocks that were never committed (the last, partly filled one) are freed, the others stay cached.
    """

    epoch: int
    sequence_id: SequenceId
    block_ids: list[bytes]  # per group
