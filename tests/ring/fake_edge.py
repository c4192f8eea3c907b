"""A text edge without text: admits requests, follows their tokens and judges every answer."""

from dataclasses import dataclass, field
from typing import assert_never

from fake_model import FakeModel
from msgspec.structs import replace

from pillion.messages.base import RingMessage
from pillion.messages.codec import pack_ids, unpack_ids, unpack_int64
from pillion.messages.control import Drain, EngineFailed, EngineGeometry, PeerRestarted, Shutdown
from pillion.messages.ids import FINISH_REASONS, FinishReason, RequestId, SequenceId
from pillion.messages.inboxes import DetokenizerInbox
from pillion.messages.requests import (
    AbortRequest,
    NewRequest,
    RequestClosed,
    RequestRejected,
    RequestScheduled,
)
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import StepOutput, TokenMasks
from pillion.runtime.errors import InvariantBroken
from pillion.runtime.lives import Lives


@dataclass(slots=True)
class EdgeSample:
    """One sample as its client sees it."""

    request_id: RequestId
    salt: str
    prompt: list[int]
    expected: list[int]  # what the model answers alone
    expected_finish: FinishReason
    deadline_ns: int | None
    token_ids: list[int] = field(default_factory=list)
    outcome: str | None = None  # a FinishReason or "rejected"
    closed_by: set[str] = field(default_factory=set)  # who said that it is over
    num_cached_tokens: int = 0
    miss_reason: str | None = None  # None: not scheduled yet
    needs_masks: bool = False
    seat: tuple[int, int, int] | None = None  # the scheduler's epoch, slot, generation


class FakeEdge:
    """The core of a detokenizer, as far as the scheduler and the worker can tell."""

    def __init__(self, model: FakeModel) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.samples: dict[SequenceId, EdgeSample] = {}
        self.open_samples: set[SequenceId] = set()
        self.requests: dict[RequestId, NewRequest] = {}
        self.num_tokens = 0
        self._model = model
        self._epoch = 1
        self._lives = Lives()
        self._last_step = (1, -1)  # the worker's epoch, step

    @property
    def num_open(self) -> int:
        """Samples that have not ended."""
        return len(self.open_samples)

    def begin(self, epoch: int, peer_epochs: dict[str, int]) -> None:
        """Its life begins."""
        self._epoch = epoch
        self._lives = Lives(peer_epochs)
        self._last_step = (self._lives["gpu_worker"], -1)

    def submit(self, request: NewRequest) -> None:
        """Sends a request to the scheduler at the next tick."""
        prompt = unpack_ids(request.prompt_token_ids)
        self.requests[request.request_id] = request
        for sample in range(request.n):
            sampling: TokenSampling = replace(request.sampling, seed=request.seeds[sample])
            expected, finish = self._model.alone(prompt, sampling)
            reason = FINISH_REASONS[finish]
            if reason is None:
                raise InvariantBroken("the fake model has not finished")
            self.samples[request.request_id + sample] = EdgeSample(
                request_id=request.request_id,
                salt=request.cache_salt,
                prompt=prompt,
                expected=expected,
                expected_finish=reason,
                deadline_ns=request.deadline_ns,
                needs_masks=request.sampling.needs_masks,
            )
            self.open_samples.add(request.request_id + sample)
        request = replace(request, epoch=self._epoch, worker_epoch=self._lives["gpu_worker"])
        self.outgoing.append(("scheduler", request))

    def _admit_again(self) -> None:
        """Sends every open request, with what it has produced so far."""
        for request in self.requests.values():
            ids = range(request.request_id, request.request_id + request.n)
            if self.open_samples.isdisjoint(ids):
                continue
            samples = [self.samples[sequence_id] for sequence_id in ids]
            again = replace(
                request,
                produced_token_ids=[pack_ids(sample.token_ids) for sample in samples],
                finished=[index for index, sample in enumerate(samples) if sample.outcome],
                worker_epoch=self._lives["gpu_worker"],
            )
            for sample in samples:
                sample.miss_reason = sample.seat = None
            self.outgoing.append(("scheduler", again))

    def abort(self, sequence_ids: list[SequenceId]) -> None:
        """Gives up samples; those that are over already may be among them."""
        for sequence_id in sequence_ids:
            if sequence_id in self.open_samples:
                self._close(sequence_id, "abort", "edge")
        self.outgoing.append(
            (
                "scheduler",
                AbortRequest(epoch=self._epoch, sequence_ids=sequence_ids, reason="abort"),
            )
        )

    def on_message(self, message: DetokenizerInbox, now_ns: int) -> None:
        """Takes one message. Raises InvariantBroken for what no client may see."""
        if self._lives.is_stale(message):
            return
        if self._lives.begun_by(message) in ("scheduler", "gpu_worker"):
            self._admit_again()
        match message:
            case StepOutput():
                self._on_step_output(message)
            case RequestRejected() | RequestClosed() | RequestScheduled():
                if message.worker_epoch == self._lives["gpu_worker"]:
                    self._on_scheduler_message(message, now_ns)
            case Shutdown():
                self.finished = True
            case EngineGeometry() | PeerRestarted() | Drain():
                pass
            case EngineFailed():
                raise InvariantBroken(message.message)
            case _:
                assert_never(message)

    def tick(self, now_ns: int) -> int | None:
        """Nothing here depends on time."""
        return None

    def _on_scheduler_message(
        self, message: RequestRejected | RequestClosed | RequestScheduled, now_ns: int
    ) -> None:
        match message:
            case RequestRejected():
                self._on_rejected(message)
            case RequestClosed():
                self._on_closed(message, now_ns)
            case RequestScheduled():
                self._on_scheduled(message)
            case _:
                assert_never(message)

    def _on_step_output(self, output: StepOutput) -> None:
        epoch, step_id = self._last_step
        if output.step_id != (step_id + 1 if output.epoch == epoch else 0):
            raise InvariantBroken(f"step {output.step_id} follows step {step_id}")
        self._last_step = (output.epoch, output.step_id)
        if output.plan_epoch != self._lives["scheduler"]:
            return
        tokens = iter(unpack_ids(output.token_ids))
        rows = zip(
            unpack_int64(output.sequence_ids),
            unpack_ids(output.positions),
            unpack_ids(output.num_tokens),
            output.finish,
            strict=True,
        )
        for sequence_id, position, num_tokens, finish in rows:
            new = [next(tokens) for _ in range(num_tokens)]
            if sequence_id in self.open_samples:
                self._on_tokens(sequence_id, position, new, FINISH_REASONS[finish])

    def _on_tokens(
        self, sequence_id: SequenceId, position: int, new: list[int], finish: FinishReason | None
    ) -> None:
        sample = self.samples[sequence_id]
        start = position - len(sample.prompt)
        if start != len(sample.token_ids):
            raise InvariantBroken(
                f"sequence {sequence_id} has {len(sample.token_ids)} tokens and gets token {start}"
            )
        sample.token_ids += new
        self.num_tokens += len(new)
        if finish is None:
            self._send_mask(sample)
        if sample.token_ids != sample.expected[: len(sample.token_ids)]:
            raise InvariantBroken(
                f"sequence {sequence_id} says {sample.token_ids}, alone it says {sample.expected}"
            )
        if finish is not None:
            if finish != sample.expected_finish or len(sample.token_ids) != len(sample.expected):
                raise InvariantBroken(f"sequence {sequence_id} ends with {finish}: {sample}")
            self._close(sequence_id, finish, "worker")

    def _on_rejected(self, message: RequestRejected) -> None:
        n = self.requests[message.request_id].n
        for sequence_id in range(message.request_id, message.request_id + n):
            if self.samples[sequence_id].miss_reason is not None:
                raise InvariantBroken(f"sequence {sequence_id} had started: {message}")
            self._close(sequence_id, "rejected", "rejection")

    def _on_scheduled(self, message: RequestScheduled) -> None:
        sample = self.samples[message.sequence_id]
        num_known = len(sample.prompt) + len(sample.token_ids)
        is_again = sample.miss_reason is not None and not sample.needs_masks
        if is_again or message.num_cached_tokens >= num_known:
            raise InvariantBroken(f"{message} for {sample}")
        sample.seat = (message.epoch, message.slot, message.generation)
        self._send_mask(sample)
        sample.num_cached_tokens = message.num_cached_tokens
        sample.miss_reason = message.miss_reason

    def _send_mask(self, sample: EdgeSample) -> None:
        """Allows everything: what is asked here is whether masks come, and in time."""
        if not sample.needs_masks or sample.seat is None:
            return
        epoch, slot, generation = sample.seat
        masks = TokenMasks(
            epoch=epoch,
            slots=pack_ids([slot]),
            generations=pack_ids([generation]),
            positions=pack_ids([len(sample.prompt) + len(sample.token_ids)]),
            masks=b"",
        )
        self.outgoing.append(("gpu_worker", masks))

    def _on_closed(self, message: RequestClosed, now_ns: int) -> None:
        sample = self.samples[message.sequence_id]
        if message.finish_reason == "timeout" and (
            sample.deadline_ns is None or now_ns < sample.deadline_ns
        ):
            raise InvariantBroken(f"sequence {message.sequence_id} had time: {sample}")
        self._close(message.sequence_id, message.finish_reason, "scheduler")

    def _close(self, sequence_id: SequenceId, outcome: str, by: str) -> None:
        """What comes first counts; two may cross each other, but nobody says the same thing twice."""
        sample = self.samples[sequence_id]
        if by in sample.closed_by:
            raise InvariantBroken(f"sequence {sequence_id} is ended by the {by} twice: {sample}")
        sample.closed_by.add(by)
        if sample.outcome is None:
            sample.outcome = outcome
            self.open_samples.discard(sequence_id)


def make_request(
    request_id: int,
    prompt: list[int],
    sampling: TokenSampling,
    arrival_time_ns: int,
    seeds: list[int],
    client_key: int = 0,
    deadline_ns: int | None = None,
    priority: int = 0,
    salt: str = "",
) -> NewRequest:
    """A fresh request with one sample per seed."""
    return NewRequest(
        epoch=1,
        edge_index=0,
        request_id=request_id,
        client_key=client_key,
        n=len(seeds),
        prompt_token_ids=pack_ids(prompt),
        produced_token_ids=[],
        finished=[],
        seeds=seeds,
        sampling=sampling,
        arrival_time_ns=arrival_time_ns,
        deadline_ns=deadline_ns,
        priority=priority,
        cache_salt=salt,
    )


def make_sampling(
    max_tokens: int,
    stop_token_ids: list[int] | None = None,
    temperature: float = 1.0,
    min_tokens: int = 0,
    prompt_logprobs: int | None = None,
    needs_masks: bool = False,
) -> TokenSampling:
    """Sampling parameters as the fake model reads them; all else is neutral."""
    return TokenSampling(
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=0,
        stop_token_ids=stop_token_ids or [],
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        logprobs=None,
        prompt_logprobs=prompt_logprobs,
        logit_bias={},
        allowed_token_ids=[],
        bad_words=[],
        needs_masks=needs_masks,
    )
