"""The truth about a request and its sequences: tokens, blocks, slot, and how far each has come."""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto

from pillion.actors.scheduler.fair_share import Client
from pillion.messages.ids import FinishReason, RequestId, SequenceId
from pillion.messages.sampling import TokenSampling


class Phase(Enum):
    """Where a sequence is. It moves downwards, and from READY or LEFT back to WAITING."""

    HELD = auto()  # its request's leading sample computes the prompt that it will share
    WAITING = auto()  # in the queue
    MATCHING = auto()  # FindPrefix is on its way; the KV manager knows the sequence from here on
    READY = auto()  # its prefix is known and its cached blocks are referenced
    RUNNING = auto()  # has a slot
    LEAVING = auto()  # over or preempted: the next plan releases its slot
    LEFT = auto()  # that plan was sent and is not answered: its blocks may still be written
    CLOSED = auto()  # over, and nothing of it is left anywhere


@dataclass(slots=True, eq=False)
class Request:
    """What the samples of one request have in common."""

    request_id: RequestId
    client: Client
    arrival_time_ns: int
    deadline_ns: int | None
    priority: int
    salt: str
    num_prompt_tokens: int
    # Its prompt is computed first; the others are HELD until its blocks can be shared. None: nobody is.
    leader: "Sequence | None" = None
    open_sequences: list["Sequence"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample. Holds every token that is known, prompt first.

    `token_ids` may run ahead of `num_computed_tokens`: the newest token's KV is written by the step that
    samples the next one.
    """

    sequence_id: SequenceId
    request: Request
    sampling: TokenSampling
    token_ids: "array[int]"
    max_total_tokens: int  # the device ends it with "length" at this many tokens
    phase: Phase = Phase.WAITING
    outcome: FinishReason | None = None  # how it ended for its client
    slot: int = -1
    generation: int = -1
    block_ids: list["array[int]"] = field(default_factory=list)  # per KV group, in table order
    capacity_tokens: int = 0  # that its blocks hold
    num_computed_tokens: int = 0  # KV known to be written
    num_planned_tokens: int = 0  # prefill planned up to here
    num_prefill_tokens: int = 0  # tokens that were known when it got its slot
    num_committed_tokens: int = 0  # cached prefix and what was committed behind it
    next_commit_tokens: int = 0  # num_computed_tokens at which another block is full
    min_ahead: int = 0  # tokens that plans in flight bring at least, unless the sequence ends
    max_ahead: int = 0  # and at most
    miss_reason: str = ""
    num_preemptions: int = 0
    num_passed: int = 0  # sequences behind it that were admitted while it did not fit
    was_charged: bool = False  # its client paid for the prompt
    was_scheduled: bool = False  # the text edge knows what the cache had for it

    @property
    def rank(self) -> tuple[int, int, int]:
        """Total order of all sequences: the lowest is served first and preempted last."""
        request = self.request
        return (request.priority, request.arrival_time_ns, self.sequence_id)

    @property
    def num_tokens(self) -> int:
        """Tokens known, prompt included."""
        return len(self.token_ids)

    @property
    def num_blocks(self) -> int:
        """Blocks in its table, the same in every group."""
        return len(self.block_ids[0]) if self.block_ids else 0

    @property
    def has_produced(self) -> bool:
        """Whether any token behind the prompt is known."""
        return len(self.token_ids) > self.request.num_prompt_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether a part of its known tokens has not been planned yet."""
        return self.num_planned_tokens < self.num_prefill_tokens

    def forget_placement(self) -> None:
        """It has neither slot nor blocks any more and knows nothing but its tokens."""
        self.slot = self.generation = -1
        self.block_ids = []
        self.capacity_tokens = 0
        self.num_computed_tokens = self.num_planned_tokens = self.num_prefill_tokens = 0
        self.num_committed_tokens = self.next_commit_tokens = 0
