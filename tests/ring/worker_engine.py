"""A whole engine in one process whose worker is the real one, and an edge that judges what it says."""

import random
from collections.abc import Callable
from dataclasses import replace

from fake_edge import EdgeSample, FakeEdge, make_request, make_sampling
from lone_worker import LoneWorker, make_stages
from msgspec import structs
from ring_engine import EngineSizes, RingEngine

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.models.loader import LoadedModel
from pillion.actors.gpu_worker.stages import Stages
from pillion.actors.gpu_worker.worker import Worker
from pillion.messages.ids import FINISH_REASONS, FinishReason, SequenceId
from pillion.messages.inboxes import WorkerInbox
from pillion.messages.requests import NewRequest
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import StepOutput


class JudgingEdge(FakeEdge):
    """Takes an answer for good if the request gets it alone, or might by a rounding."""

    def __init__(self, model: LoneWorker) -> None:
        super().__init__(model)  # type: ignore[arg-type]
        self.num_ties = 0  # answers that a rounding has changed
        self._alone = model

    def _on_step_output(self, output: StepOutput) -> None:
        epoch, step_id = self._last_step
        if output.epoch == epoch and output.step_id > step_id:
            # Steps without rows are told to the scheduler alone.
            self._last_step = (epoch, output.step_id - 1)
        super()._on_step_output(output)

    def _on_tokens(
        self, sequence_id: SequenceId, position: int, new: list[int], finish: FinishReason | None
    ) -> None:
        sample = self.samples[sequence_id]
        said = sample.token_ids + new
        if said != sample.expected[: len(said)]:
            self._look_again(sequence_id, sample, said)
        super()._on_tokens(sequence_id, position, new, finish)

    def _look_again(self, sequence_id: SequenceId, sample: EdgeSample, said: list[int]) -> None:
        request = self.requests[sample.request_id]
        seed = request.seeds[sequence_id - sample.request_id]
        sampling = structs.replace(request.sampling, seed=seed)
        found = self._alone.as_well(sample.prompt, sampling, said)
        if found is not None:
            sample.expected, reason = found[0], FINISH_REASONS[found[1]]
            assert reason is not None
            sample.expected_finish = reason
            self.num_ties += 1


class RingWorker:
    """The worker's core as the ring's engine looks at it."""

    crashed = False

    def __init__(self, stages: Stages, worker: Worker) -> None:
        self.core = worker
        self.outgoing = worker.outgoing
        self._stages = stages

    @property
    def finished(self) -> bool:
        return self.core.finished

    @property
    def rows(self) -> list[int]:
        """Slots that have a tenant."""
        return self._stages.states.occupied().tolist()

    def on_message(self, message: WorkerInbox, now_ns: int) -> None:
        self.core.on_message(message, now_ns)

    def tick(self, now_ns: int) -> int | None:
        wake_ns = self.core.tick(now_ns)
        for _, message in self.outgoing:
            if isinstance(message, StepOutput):
                assert message.failure is None, message.failure
        return wake_ns


class WorkerEngine(RingEngine[JudgingEdge]):
    """Scheduler, KV manager and worker are the real ones."""

    def __init__(self, loaded: LoadedModel, device: Device, seed: int, sizes: EngineSizes) -> None:
        sizes = replace(sizes, vocab_size=loaded.config.vocab_size)
        model = LoneWorker(loaded, device, sizes)
        self._make_stages: Callable[[], Stages] = lambda: make_stages(
            loaded, device, sizes, with_graphs=device.is_cuda
        )
        super().__init__(JudgingEdge(model), model, seed, sizes)  # type: ignore[arg-type]

    def _new_worker(self, epoch: int) -> RingWorker:  # type: ignore[override]
        stages = self._make_stages()
        return RingWorker(stages, stages.worker(epoch, self.sizes.steps_in_flight))

    def submit(self, request: NewRequest) -> None:
        """The edge sends a request."""
        self.edge.submit(request)
        self.ring.wake("detokenizer")

    def abort(self, sequence_ids: list[SequenceId]) -> None:
        """The edge gives up samples."""
        self.edge.abort(sequence_ids)
        self.ring.wake("detokenizer")


class MixedLoad:
    """Requests with every sampling feature, some of them again and again, and aborts; drawn from a seed."""

    def __init__(self, engine: WorkerEngine, seed: int, max_open: int = 14) -> None:
        self.engine = engine
        self.num_aborts = 0
        self._chance = random.Random(seed)
        self._max_open = max_open
        self._next_id = 1
        self._trunks = [self._tokens(40) for _ in range(3)]
        self._drawn: list[tuple[list[int], TokenSampling, list[int]]] = []

    def turn(self) -> None:
        """Something arrives or is given up, and the engine goes on for a while."""
        chance, edge, ring = self._chance, self.engine.edge, self.engine.ring
        if edge.num_open < self._max_open:
            for _ in range(chance.choice((1, 1, 1, 5))):
                self._submit()
        if edge.open_samples and chance.random() < 0.2:
            # An abort may name a sequence that has just ended.
            some = chance.choice(sorted(edge.open_samples))
            self.engine.abort([some, chance.randrange(1, self._next_id)])
            self.num_aborts += 1
        for _ in range(chance.randrange(60)):
            ring.step()

    def _submit(self) -> None:
        chance = self._chance
        if not self._drawn or chance.random() < 0.4:
            n = chance.choice((1, 1, 1, 2, 4))
            seeds = [chance.randrange(2**63) for _ in range(n)]
            self._drawn.append((self._prompt(), self._sampling(), seeds))
        prompt, sampling, seeds = chance.choice(self._drawn[-30:])
        request = make_request(
            request_id=self._next_id,
            prompt=prompt,
            sampling=sampling,
            arrival_time_ns=self.engine.ring.now_ns,
            seeds=seeds,
            client_key=chance.randrange(3),
            priority=chance.choice((0, 0, 0, -1, 5)),
            salt=chance.choice(("", "", "s")),
        )
        self._next_id += len(seeds)
        self.engine.submit(request)

    def _prompt(self) -> list[int]:
        """A shared trunk and a tail of its own; it leaves room for an answer."""
        chance = self._chance
        trunk = chance.choice(self._trunks)[: chance.randrange(41)]
        return trunk + self._tokens(chance.choice((1, 3, 20)))

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(self.engine.sizes.vocab_size) for _ in range(count)]

    def _sampling(self) -> TokenSampling:
        """Greedy and nothing else half of the time; else any of the features."""
        chance, vocab_size = self._chance, self.engine.sizes.vocab_size
        plain = make_sampling(
            max_tokens=chance.choice((1, 2, 10, 30, 60)),
            stop_token_ids=chance.choice(([], [1], [1, 2, 3])),
            temperature=0.0,
        )
        if chance.random() < 0.5:
            return plain

        def some(count: int) -> list[int]:
            return chance.sample(range(vocab_size), count)

        return structs.replace(
            plain,
            temperature=chance.choice((0.0, 0.8, 1.5)),
            top_k=chance.choice((0, 0, 20)),
            top_p=chance.choice((1.0, 0.9)),
            min_p=chance.choice((0.0, 0.02)),
            presence_penalty=chance.choice((0.0, 0.5)),
            frequency_penalty=chance.choice((0.0, 0.2)),
            repetition_penalty=chance.choice((1.0, 1.1)),
            min_tokens=chance.choice((0, 0, 5)),
            logprobs=chance.choice((None, None, 0, 3)),
            prompt_logprobs=chance.choice((None, None, None, 2)),
            logit_bias=dict.fromkeys(some(5), 2.0) if chance.random() < 0.2 else {},
            allowed_token_ids=some(50) if chance.random() < 0.2 else [],
            bad_words=[some(1), some(2)] if chance.random() < 0.2 else [],
        )
