"""The requests that are open: who came, who waits, who leads, and who has ended for its client."""

from array import array
from typing import Final

import msgspec

from pillion.actors.scheduler.deadlines import Deadlines
from pillion.actors.scheduler.fair_share import FairShare
from pillion.actors.scheduler.queues import WaitingQueue
from pillion.actors.scheduler.sequence import Phase, Request, Sequence
from pillion.actors.scheduler.step_faults import StepFaults
from pillion.messages.blocks import PRIVATE_SALT_PREFIX
from pillion.messages.ids import FinishReason, SequenceId
from pillion.messages.requests import NewRequest
from pillion.runtime.errors import InvariantBroken

TOKEN_BYTES: Final = 4


class RequestBook:
    """Requests as their clients see them. What they hold of the engine is not its business."""

    def __init__(self, enable_prefix_caching: bool, faults: StepFaults) -> None:
        self.open: dict[SequenceId, Sequence] = {}  # without an outcome
        self.fair_share = FairShare()
        self.queue = WaitingQueue()
        self.deadlines = Deadlines()
        self._faults = faults
        self._aside = WaitingQueue()  # while others are on trial for a step that failed
        self._caching = enable_prefix_caching

    def accept(self, message: NewRequest) -> Request | None:
        """Opens a request and queues the sample that leads; None if all its samples have ended before.

        Raises InvariantBroken if one of them is open already.
        """
        indices = [index for index in range(message.n) if index not in message.finished]
        if not indices:
            return None
        request = Request(
            request_id=message.request_id,
            client=self.fair_share.join(message.client_key, len(indices)),
            arrival_time_ns=message.arrival_time_ns,
            deadline_ns=message.deadline_ns,
            priority=message.priority,
            salt=self._salt(message),
            num_prompt_tokens=len(message.prompt_token_ids) // TOKEN_BYTES,
        )
        for index in indices:
            sequence = _make_sequence(request, message, index)
            if sequence.sequence_id in self.open:
                raise InvariantBroken(f"sequence {sequence.sequence_id} is admitted and is open")
            request.open_sequences.append(sequence)
            self.open[sequence.sequence_id] = sequence
        self.deadlines.add(request)
        for sequence in request.open_sequences:
            if self._faults.is_suspect(sequence.sequence_id):
                self.requeue(sequence)  # it is tried by itself, whoever leads
        self._lead(request)
        return request

    def retire(self, sequence: Sequence, outcome: FinishReason) -> None:
        """The sequence has ended for its client. If it leads, the next sample does now."""
        request = sequence.request
        sequence.outcome = outcome
        del self.open[sequence.sequence_id]
        self._faults.forget(sequence.sequence_id)
        self.fair_share.leave(request.client)
        request.open_sequences.remove(sequence)
        if not request.open_sequences:
            self.deadlines.discard(request)
        if sequence.phase is Phase.WAITING:
            self._queue_of(sequence).remove(sequence)
        if sequence.phase in (Phase.WAITING, Phase.HELD):
            sequence.phase = Phase.CLOSED
        if request.leader is sequence:
            self._lead(request)

    def requeue(self, sequence: Sequence) -> None:
        """The sequence has lost its place and waits for another one."""
        sequence.phase = Phase.WAITING
        self._queue_of(sequence).push(sequence)

    def may_run(self, sequence: Sequence) -> bool:
        """Whether it need not wait for a trial of others."""
        return self._faults.may_run(sequence.sequence_id)

    def sort_queue(self) -> None:
        """Others than before may run: those who may not wait aside. Who is tried waits for nobody."""
        for sequence in self.open.values():
            if sequence.phase is Phase.HELD and self._faults.is_suspect(sequence.sequence_id):
                self.requeue(sequence)
        for sequence in self.queue.take_all() + self._aside.take_all():
            self._queue_of(sequence).push(sequence)

    def follow(self, leader: Sequence, block_size_tokens: int) -> None:
        """Queues the samples that wait for this one, if they can share its prompt now.

        They can when every full block of the prompt is committed that a prefix may consist of.
        """
        request = leader.request
        if request.leader is not leader:
            return
        shareable = (request.num_prompt_tokens - 1) // block_size_tokens * block_size_tokens
        if leader.num_committed_tokens < shareable:
            return
        request.leader = None
        for sequence in request.open_sequences:
            if sequence.phase is Phase.HELD:
                self.requeue(sequence)

    def _queue_of(self, sequence: Sequence) -> WaitingQueue:
        return self.queue if self.may_run(sequence) else self._aside

    def _lead(self, request: Request) -> None:
        held = (s for s in request.open_sequences if s.phase is Phase.HELD)
        request.leader = next(held, None)
        if request.leader is not None:
            self.requeue(request.leader)

    def _salt(self, message: NewRequest) -> str:
        """Without a prefix cache a request shares blocks with nobody but itself."""
        return message.cache_salt if self._caching else f"{PRIVATE_SALT_PREFIX}{message.request_id}"


def find_fault(message: NewRequest) -> str | None:
    """What a text edge did wrong; the request is rejected and nobody else is hurt."""
    if message.n < 1 or len(message.seeds) != message.n:
        return f"{message.n} samples came with {len(message.seeds)} seeds"
    if message.produced_token_ids and len(message.produced_token_ids) != message.n:
        return f"{message.n} samples came with tokens of {len(message.produced_token_ids)}"
    if any(
        len(ids) % TOKEN_BYTES for ids in (message.prompt_token_ids, *message.produced_token_ids)
    ):
        return "token ids are not packed int32"
    if not message.prompt_token_ids:
        return "the prompt has no tokens"
    if any(not 0 <= index < message.n for index in message.finished):
        return f"samples {message.finished} of {message.n} are said to have finished"
    return None


def _make_sequence(request: Request, message: NewRequest, index: int) -> Sequence:
    token_ids = array("i")
    token_ids.frombytes(message.prompt_token_ids)
    if message.produced_token_ids:
        token_ids.frombytes(message.produced_token_ids[index])
    # All samples have the same prompt, so the first one's log-probabilities do for all.
    num_top = message.sampling.prompt_logprobs if index == 0 else None
    return Sequence(
        sequence_id=message.request_id + index,
        request=request,
        sampling=msgspec.structs.replace(
            message.sampling, seed=message.seeds[index], prompt_logprobs=num_top
        ),
        token_ids=token_ids,
        max_total_tokens=request.num_prompt_tokens + message.sampling.max_tokens,
        phase=Phase.HELD,
    )
