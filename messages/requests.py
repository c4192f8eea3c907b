"""Requests inside the ring: from the text edge to the scheduler and back.

A term is one life of the scheduler together with one of the worker. When either begins anew, the scheduler knows no
request, and the edge admits every open one again, with the tokens that it has: no client has seen others. Whatever
belongs to another term is dropped by its receiver.
"""

from pillion.messages.base import RingMessage
from pillion.messages.ids import ErrorCode, FinishReason, RequestId, SequenceId
from pillion.messages.sampling import TokenSampling


class NewRequest(RingMessage, frozen=True):
    """Admits a request; also used to admit it again after an actor's death, with what it had produced.

    Sample i (0 <= i < n) is the sequence `request_id + i` and draws its noise from `seeds[i]`.
    """

    epoch: int  # the sending edge's
    edge_index: int
    request_id: RequestId
    client_key: int  # requests of one client share that client's fair share
    n: int
    prompt_token_ids: bytes  # packed int32
    produced_token_ids: list[bytes]  # per sample, packed int32; empty list: nothing produced
    finished: list[int]  # samples that need no further token (after a re-admission)
    seeds: list[int]  # per sample
    sampling: TokenSampling  # its own seed field is replaced by seeds[i]
    arrival_time_ns: int  # monotonic clock, the same for all processes of the machine
    deadline_ns: int | None  # monotonic; the request ends with "timeout" then
    priority: int  # lower runs earlier
    cache_salt: str  # requests with different salts never share blocks
    # The worker's life as the edge knows it. With each new one the edge sends every open request again.
    worker_epoch: int = 1


class AbortRequest(RingMessage, frozen=True):
    """Ends sequences at once: the client is gone, has cancelled, or a stop string was found.

    No answer follows: the edge has already told its client.
    """

    epoch: int
    sequence_ids: list[SequenceId]
    reason: FinishReason


class RequestRejected(RingMessage, frozen=True):
    """The scheduler will not run this request; none of its samples has started."""

    epoch: int
    request_id: RequestId
    code: ErrorCode
    message: str
    retry_after_ms: int | None = None
    worker_epoch: int = 1


class RequestClosed(RingMessage, frozen=True):
    """The scheduler ended a sequence for a reason that the worker does not know (timeout, error)."""

    epoch: int
    sequence_id: SequenceId
    finish_reason: FinishReason
    message: str | None = None
    worker_epoch: int = 1


class RequestScheduled(RingMessage, frozen=True):
    """A sequence got its slot: what the prefix cache had for it, and why not more.

    `miss_reason` is "" when everything that may be cached was. Sent before the first token's step; for a
    sequence that needs masks again each time that it gets a slot, so that they find it.
    """

    epoch: int
    sequence_id: SequenceId
    num_cached_tokens: int
    miss_reason: str
    worker_epoch: int = 1
    slot: int = -1
    generation: int = -1
    planned_ns: int = 0  # monotonic: when the plan was made
