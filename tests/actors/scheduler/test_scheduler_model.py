"""The scheduler among a worker, a KV manager and an edge that check every rule, under random loads and races."""

from dataclasses import dataclass
from typing import Any

from fake_edge import FakeEdge, make_request, make_sampling
from fake_kv_manager import FakeKvManager
from fake_model import FakeModel
from fake_worker import FakeWorker, fake_geometry
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from memory_ring import NS_PER_US, Life, RingSimulation

from pillion.actors.scheduler.scheduler import Scheduler
from pillion.messages.inboxes import (
    DetokenizerInbox,
    KvManagerInbox,
    SchedulerInbox,
    WorkerInbox,
)
from pillion.runtime.config import EngineConfig

MAX_TURNS = 200_000


@dataclass(frozen=True)
class Arrival:
    """A request of the scenario."""

    at_us: int
    num_prompt_tokens: int
    family: int  # prompts of one family begin alike
    max_tokens: int
    n: int = 1
    client_key: int = 0
    priority: int = 0
    deadline_us: int | None = None  # after its arrival
    abort_us: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class Sizes:
    """An engine of the scenario."""

    num_slots: int
    budget: int
    num_blocks: int
    block_size: int
    max_repeat: int
    steps_in_flight: int
    caching: bool = True
    poison_every: int = 0
    max_model_len: int = 96


class World:
    """One simulated daemon."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes = sizes
        config = EngineConfig(
            model="fake",
            block_size=8,
            max_repeat=sizes.max_repeat,
            steps_in_flight=sizes.steps_in_flight,
            enable_prefix_caching=sizes.caching,
        )
        self.model = FakeModel(50, sizes.max_model_len, sizes.poison_every)
        self.scheduler = Scheduler(1, config)
        self.kv = FakeKvManager(sizes.num_blocks, sizes.block_size)
        self.worker = FakeWorker(self.model, sizes.num_slots, sizes.num_blocks, sizes.block_size, 2)
        self.edge = FakeEdge(self.model)
        self.ring = RingSimulation(seed)
        self.ring.add("scheduler", self.scheduler, SchedulerInbox)
        self.ring.add("kv_manager", self.kv, KvManagerInbox)
        self.ring.add("gpu_worker", self.worker, WorkerInbox)
        self.ring.add("detokenizer", self.edge, DetokenizerInbox)

    def start_engine(self) -> None:
        sizes = self.sizes
        geometry = fake_geometry(
            self.model, sizes.num_slots, sizes.budget, sizes.num_blocks, sizes.block_size
        )
        self.ring.send(Life("launcher", 1), Life("scheduler", 1), geometry)

    def submit(self, request_id: int, arrival: Arrival) -> None:
        prompt = [(arrival.family * 7 + place) % 50 for place in range(arrival.num_prompt_tokens)]
        deadline_ns = None
        if arrival.deadline_us is not None:
            deadline_ns = self.ring.now_ns + arrival.deadline_us * NS_PER_US
        self.edge.submit(
            make_request(
                request_id,
                prompt,
                make_sampling(
                    arrival.max_tokens,
                    stop_token_ids=[3],
                    prompt_logprobs=arrival.prompt_logprobs,
                ),
                arrival_time_ns=self.ring.now_ns,
                seeds=[request_id + sample for sample in range(arrival.n)],
                client_key=arrival.client_key,
                deadline_ns=deadline_ns,
                priority=arrival.priority,
            )
        )
        self.ring.wake("detokenizer")

    def at(self, due_us: int) -> None:
        """Lets time pass until then, or until nothing happens any more."""
        due_ns = 1_000_000_000 + due_us * NS_PER_US
        while self.ring.now_ns < due_ns and self.ring.step():
            pass
        self.ring.now_ns = max(self.ring.now_ns, due_ns)

    def everything_ended_once(self) -> None:
        self.ring.settle(MAX_TURNS)
        assert not self.edge.open_samples
        assert not self.worker.rows
        assert not self.kv.open
        assert self.kv.num_used == 0
        self.kv.verify()
        gauges, counters = self.scheduler.gauges, self.scheduler.counters
        assert gauges["open"] == gauges["running"] == gauges["waiting"] == 0
        assert gauges["leased_blocks"] == len(self.kv.leased)
        outcomes = sum(v for k, v in counters.items() if k.startswith("finished_"))
        assert counters["received"] == outcomes + counters["rejected"] == len(self.edge.samples)


ARRIVALS = st.builds(
    Arrival,
    at_us=st.integers(0, 60_000),
    num_prompt_tokens=st.one_of(st.integers(1, 12), st.integers(1, 70)),
    family=st.integers(0, 2),
    max_tokens=st.one_of(st.integers(1, 6), st.integers(1, 60)),
    n=st.sampled_from([1, 1, 1, 2, 4]),
    client_key=st.integers(0, 2),
    priority=st.sampled_from([0, 0, 0, -1, 3]),
    deadline_us=st.one_of(st.none(), st.none(), st.integers(-10, 40_000)),
    abort_us=st.one_of(st.none(), st.none(), st.integers(0, 40_000)),
    prompt_logprobs=st.sampled_from([None, None, None, 2]),
)
SIZES = st.builds(
    Sizes,
    num_slots=st.integers(1, 6),
    budget=st.sampled_from([4, 16, 40, 200]),
    num_blocks=st.integers(4, 40),
    block_size=st.sampled_from([2, 4, 8]),
    max_repeat=st.sampled_from([1, 3, 8, 64]),
    steps_in_flight=st.sampled_from([1, 2, 2, 3]),
    caching=st.booleans(),
    poison_every=st.sampled_from([0, 0, 60]),
)


def play(world: World, arrivals: list[Arrival], geometry_at_us: int) -> None:
    """Submits and aborts at the arrivals' times."""
    events: list[tuple[int, int, str, Any]] = [(geometry_at_us, 0, "geometry", None)]
    for number, arrival in enumerate(arrivals):
        request_id = 1000 + number * 10
        events.append((arrival.at_us, request_id, "submit", arrival))
        if arrival.abort_us is not None:
            events.append((arrival.at_us + arrival.abort_us, request_id, "abort", arrival))
    for due_us, request_id, what, arrival in sorted(events, key=lambda item: item[:2]):
        world.at(due_us)
        if what == "geometry":
            world.start_engine()
        elif what == "submit":
            world.submit(request_id, arrival)
        else:
            # One of the samples, as when its stop string was found, or all of them.
            samples = [request_id] if due_us % 2 else range(request_id, request_id + arrival.n)
            world.edge.abort(list(samples))
            world.ring.wake("detokenizer")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=SIZES,
    arrivals=st.lists(ARRIVALS, min_size=1, max_size=25),
    geometry_at_us=st.sampled_from([0, 0, 0, 20_000]),
    seed=st.integers(0, 2**32),
)
def test_every_request_ends_once_with_its_own_tokens_and_leaves_nothing(
    sizes: Sizes, arrivals: list[Arrival], geometry_at_us: int, seed: int
) -> None:
    world = World(sizes, seed)
    play(world, arrivals, geometry_at_us)
    world.everything_ended_once()
    counters = world.scheduler.counters
    event(f"preempted: {counters['preemptions'] > 0}")
    event(f"shared blocks: {bool(world.worker.shared)}")
    event(f"stale rows: {counters['stale_rows'] > 0}")
