"""A scheduler on the bench: a KV manager that answers at once, and a worker that steps when it is told to."""

import random
from dataclasses import dataclass, field
from typing import Any

from fake_edge import make_request, make_sampling
from fake_kv_manager import FakeKvManager
from fake_model import FakeModel
from fake_worker import FakeWorker, fake_geometry

from pillion.actors.scheduler.planner import IDLE_RELEASE_NS
from pillion.actors.scheduler.scheduler import Scheduler
from pillion.messages.base import RingMessage
from pillion.messages.codec import unpack_ids
from pillion.messages.requests import AbortRequest, NewRequest
from pillion.messages.steps import StepOutput, StepPlan
from pillion.runtime.config import EngineConfig

MAX_ROUNDS = 20_000


@dataclass
class Row:
    """A row of a plan, or a new sequence's."""

    slot: int
    start: int
    num_tokens: int


@dataclass
class Bench:
    """Sizes of the engine, and what everyone was told."""

    num_slots: int = 4
    budget: int = 32
    num_blocks: int = 64
    block_size: int = 4
    max_repeat: int = 8
    steps_in_flight: int = 2
    caching: bool = True
    max_model_len: int = 200
    with_engine: bool = True
    kv_answers: bool = True
    now_ns: int = 0
    plans: list[StepPlan] = field(default_factory=list)
    to_edge: list[Any] = field(default_factory=list)
    to_kv: list[Any] = field(default_factory=list)
    to_launcher: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = EngineConfig(
            model="fake",
            max_repeat=self.max_repeat,
            steps_in_flight=self.steps_in_flight,
            enable_prefix_caching=self.caching,
        )
        self.scheduler = Scheduler(1, config)
        self.model = FakeModel(50, self.max_model_len)
        self.kv = FakeKvManager(self.num_blocks, self.block_size)
        self.worker = FakeWorker(self.model, self.num_slots, self.num_blocks, self.block_size)
        if self.with_engine:
            self.start_engine()

    def start_engine(self, epoch: int = 1) -> None:
        """The worker has loaded."""
        geometry = fake_geometry(
            self.model, self.num_slots, self.budget, self.num_blocks, self.block_size, epoch
        )
        self.send(geometry)

    def send(self, *messages: Any) -> None:
        """One turn of the scheduler with these messages, and all talk with the KV manager that follows."""
        for message in messages:
            self.scheduler.on_message(message, self.now_ns)
        self.turn()

    def turn(self) -> int | None:
        """Ticks until the KV manager has answered everything."""
        while True:
            wake_ns = self.scheduler.tick(self.now_ns)
            for receiver, message in self.scheduler.outgoing:
                self._deliver(receiver, message)
            self.scheduler.outgoing.clear()
            answers = [message for _, message in self.kv.outgoing] if self.kv_answers else []
            if self.kv_answers:
                self.kv.outgoing.clear()
            for answer in answers:
                self.scheduler.on_message(answer, self.now_ns)
            if not answers and wake_ns != self.now_ns:
                return wake_ns

    def request(self, request_id: int, prompt: list[int] | int, **options: Any) -> NewRequest:
        """A request; an int for a prompt means that many tokens of its own."""
        if isinstance(prompt, int):
            chance = random.Random(request_id)
            prompt = [chance.randrange(50) for _ in range(prompt)]
        sampling = make_sampling(
            options.pop("max_tokens", 10), prompt_logprobs=options.pop("prompt_logprobs", None)
        )
        n = options.pop("n", 1)
        options.setdefault("arrival_time_ns", request_id)
        return make_request(request_id, prompt, sampling, seeds=list(range(n)), **options)

    def submit(self, request_id: int, prompt: list[int] | int, **options: Any) -> None:
        """Sends a request."""
        self.send(self.request(request_id, prompt, **options))

    def abort(self, *sequence_ids: int, reason: Any = "abort") -> None:
        """Sends an abort."""
        self.send(AbortRequest(epoch=1, sequence_ids=list(sequence_ids), reason=reason))

    def outputs(self) -> list[StepOutput]:
        """One turn of the worker; what it said."""
        self.worker.tick(self.now_ns)
        said = [message for name, message in self.worker.outgoing if name == "scheduler"]
        self.worker.outgoing.clear()
        return [message for message in said if isinstance(message, StepOutput)]

    def step(self, num_steps: int = 1) -> None:
        """Lets the worker answer that many steps."""
        for _ in range(MAX_ROUNDS):
            if not num_steps:
                return
            if not self.worker.has_work:
                raise RuntimeError("the worker has nothing to do")
            outputs = self.outputs()
            num_steps -= len(outputs)
            self.send(*outputs)
        raise RuntimeError("the worker does not answer")

    def run(self) -> None:
        """Until the worker has nothing more to do, not even in a moment."""
        for _ in range(MAX_ROUNDS):
            if not self.worker.has_work:
                self.rest()
            if not self.worker.has_work:
                return
            self.send(*self.outputs())
        raise RuntimeError("the worker is still busy")

    def rest(self) -> None:
        """Lets the moment pass after which slots that nobody waits for go back."""
        self.now_ns += IDLE_RELEASE_NS
        self.turn()

    def rows(self, place: int = -1) -> list[Row]:
        """Rows of a plan."""
        plan = self.plans[place]
        columns = (plan.slots, plan.starts, plan.num_tokens)
        return [Row(*row) for row in zip(*map(unpack_ids, columns), strict=True)]

    def told(self, kind: type) -> list[Any]:
        """What of this kind the edge was told."""
        return [message for message in self.to_edge if isinstance(message, kind)]

    def asked(self, kind: type) -> list[Any]:
        """What of this kind the KV manager was told."""
        return [message for message in self.to_kv if isinstance(message, kind)]

    def nothing_is_left(self) -> None:
        """Fails unless every slot and block is back and every sample is counted."""
        self.run()
        assert not self.worker.rows
        assert not self.kv.open
        self.kv.verify()
        gauges, counters = self.scheduler.gauges, self.scheduler.counters
        assert gauges["open"] == 0
        assert gauges["leased_blocks"] == len(self.kv.leased)
        outcomes = sum(v for k, v in counters.items() if k.startswith("finished_"))
        assert counters["received"] == outcomes + counters["rejected"] + counters["forgotten"]

    def _deliver(self, receiver: str, message: RingMessage) -> None:
        match receiver:
            case "gpu_worker":
                assert isinstance(message, StepPlan)
                self.plans.append(message)
                self.worker.on_message(message, self.now_ns)
            case "kv_manager":
                self.to_kv.append(message)
                self.kv.on_message(message, self.now_ns)  # type: ignore[arg-type]
            case "detokenizer":
                self.to_edge.append(message)
            case _:
                assert receiver == "launcher"
                self.to_launcher.append(message)
