"""A whole engine in one process: the real scheduler and KV manager, a fake worker, and some text edge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from fake_model import FakeModel
from fake_worker import FakeRow, FakeWorker, Fault, fake_geometry
from memory_ring import NS_PER_US, Life, Pace, RingSimulation

from pillion.actors.kv_manager.kv_manager import KvManager
from pillion.actors.scheduler.scheduler import Scheduler
from pillion.messages.base import RingMessage
from pillion.messages.blocks import RecallLease
from pillion.messages.control import EngineGeometry, PeerRestarted
from pillion.messages.inboxes import (
    DetokenizerInbox,
    KvManagerInbox,
    SchedulerInbox,
    WorkerInbox,
)
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import InvariantBroken

LAUNCHER: Final = Life("launcher", 1)
INBOXES: Final[dict[str, Any]] = {
    "scheduler": SchedulerInbox,
    "kv_manager": KvManagerInbox,
    "gpu_worker": WorkerInbox,
    "detokenizer": DetokenizerInbox,
}
# From an actor's death to the first turn of its next life, and from there to the launcher's word of it.
LOAD_US: Final = 100_000
RESTART_US: Final = (0, 60_000)


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """How small the engine is; small ones run into their limits."""

    max_num_seqs: int = 4
    num_blocks: int = 40
    block_size: int = 4
    max_num_batched_tokens: int = 24
    max_model_len: int = 96
    max_repeat: int = 8
    steps_in_flight: int = 2
    vocab_size: int = 60
    poison_every: int = 0
    enable_prefix_caching: bool = True


class Edge(Protocol):
    """What stands in the place of a text edge. It outlives its deaths, since what is asked of it does."""

    outgoing: list[tuple[str, RingMessage]]
    finished: bool

    @property
    def num_open(self) -> int:
        """Samples that have not ended."""

    def begin(self, epoch: int, peer_epochs: dict[str, int]) -> None:
        """A life of it begins."""

    def on_message(self, message: DetokenizerInbox, now_ns: int) -> None:
        """Takes a message."""

    def tick(self, now_ns: int) -> int | None:
        """Work after all messages that were there."""


E = TypeVar("E", bound=Edge)


class RingEngine(Generic[E]):
    """The ring, ready to take requests. `verify_every` turns, the KV manager counts all its blocks again."""

    def __init__(
        self,
        edge: E,
        model: FakeModel,
        seed: int,
        sizes: EngineSizes | None = None,
        pace: Pace | None = None,
        verify_every: int = 50,
        fails: Callable[[list[FakeRow]], Fault | None] = lambda rows: None,
    ) -> None:
        self._fails = fails
        self.sizes = sizes = sizes or EngineSizes()
        self.model = model
        self.ring = RingSimulation(seed, pace)
        self.edge = edge
        self.kv_manager: KvManager
        self.worker: FakeWorker
        self.scheduler: Scheduler
        self.num_kills = 0
        self.num_lost_devices = 0
        self.num_crashes = 0
        self._crash: str | None = None  # of a worker since the last one that was announced
        self._epochs = dict.fromkeys(INBOXES, 1)
        self._announced = dict.fromkeys(INBOXES, 1)
        self._verify_every = verify_every
        self.ring.after_turn = self._after_turn
        for name in INBOXES:
            self._start(name)
        for name in ("scheduler", "kv_manager", "detokenizer"):
            self.tell(name, self._geometry())

    def recall(self, num_blocks: int) -> None:
        """The KV manager wants blocks back that it has leased."""
        if self.scheduler._engine is None:
            return
        recall = RecallLease(
            epoch=self._epochs["kv_manager"],
            group=0,
            num_blocks=num_blocks,
            worker_epoch=self.scheduler._term.worker_epoch,
        )
        kv_manager, scheduler = (Life(n, self._epochs[n]) for n in ("kv_manager", "scheduler"))
        self.ring.send(kv_manager, scheduler, recall)

    def kill(self, name: str) -> None:
        """The actor dies, at any time but while it is dead; the launcher starts it again."""
        if self.ring.epoch_of(name) is None:
            return
        self.num_kills += 1
        self.ring.kill(name)
        self.ring.call_later(self._draw_ns(), lambda: self._restart(name))

    def _end_worker(self) -> None:
        """It has said its last word, or crashed, and exits; to load again takes longer than that word its way."""
        if self.ring.epoch_of("gpu_worker") is not None:
            if self.worker.crashed:
                self.num_crashes += 1
                self._crash = "the worker has crashed"
            else:
                self.num_lost_devices += 1
            self.ring.kill("gpu_worker", loses_words=self.worker.crashed)
            self.ring.call_later(LOAD_US * NS_PER_US, lambda: self._restart("gpu_worker"))

    def _restart(self, name: str) -> None:
        self._epochs[name] += 1
        epoch = self._epochs[name]
        self._start(name)
        self.ring.call_later(self._draw_ns(), lambda: self._announce(name, epoch))

    def _announce(self, name: str, epoch: int) -> None:
        """The launcher has seen that the new life is ready, unless it has ended meanwhile."""
        if self.ring.epoch_of(name) != epoch:
            return
        self._announced[name] = epoch
        crash = None
        if name == "gpu_worker":
            crash, self._crash = self._crash, None
        for other in INBOXES:
            if other != name:
                self.tell(other, PeerRestarted(actor=name, epoch=epoch, crash=crash))
        if name == "gpu_worker":
            for other in ("scheduler", "kv_manager", "detokenizer"):
                self.tell(other, self._geometry())
        else:
            self.tell(name, self._geometry())

    def _start(self, name: str) -> None:
        """One life of an actor. It may know of peers that nobody else knows yet."""
        epochs = self.ring.chance.choice((self._epochs, self._announced))
        peers = {peer: epochs[peer] for peer in INBOXES if peer != name}
        core = self._new_core(name, peers)
        self.ring.add(name, core, INBOXES[name], self._epochs[name], peers)

    def _new_core(self, name: str, peers: dict[str, int]) -> object:
        epoch = self._epochs[name]
        match name:
            case "scheduler":
                self.scheduler = self._new_scheduler(epoch, peers)
                return self.scheduler
            case "kv_manager":
                caching = self.sizes.enable_prefix_caching
                self.kv_manager = KvManager(epoch, caching, peer_epochs=peers)
                return self.kv_manager
            case "gpu_worker":
                self.worker = self._new_worker(epoch)
                return self.worker
            case _:
                self.edge.begin(epoch, peers)
                return self.edge

    def tell(self, name: str, message: RingMessage) -> None:
        """The launcher tells an actor's current life."""
        self.ring.send(LAUNCHER, Life(name, self._epochs[name]), message)

    def _draw_ns(self) -> int:
        return self.ring.chance.randint(*RESTART_US) * NS_PER_US

    def finish(self, max_turns: int = 200_000) -> None:
        """Runs until every sample has ended and all is quiet, and checks that nothing is left anywhere."""
        self.ring.run(lambda: not self.edge.num_open, max_turns)
        self.ring.settle(max_turns)
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        """Every sample has ended, nothing is in use, nobody read what it must not. Raises InvariantBroken."""
        self.kv_manager.verify()
        free, leased, referenced, cached = self.kv_manager.groups[0].pool.counts
        left = {
            "open samples": self.edge.num_open,
            "slots": len(self.worker.rows),
            "sequences at the KV manager": len(self.kv_manager.sequences),
            "referenced blocks": referenced,
            "leased blocks that the scheduler does not have": leased - self.num_free_leased,
            "owed blocks": self.kv_manager.groups[0].num_owed,
            "samples that are not counted": self._num_uncounted(),
            "lost blocks": self.sizes.num_blocks - free - leased - referenced - cached,
        }
        if any(left.values()):
            raise InvariantBroken(f"left behind: { {name: n for name, n in left.items() if n} }")

    def _num_uncounted(self) -> int:
        counters = self.scheduler.counters
        ended = sum(int(n) for name, n in counters.items() if name.startswith("finished_"))
        return int(counters["received"] - counters["rejected"] - counters["forgotten"]) - ended

    @property
    def num_free_leased(self) -> int:
        """Leased blocks that the scheduler has given to no sequence."""
        return int(self.scheduler.gauges.get("leased_blocks", 0))

    def _new_worker(self, epoch: int) -> FakeWorker:
        sizes = self.sizes
        return FakeWorker(
            self.model,
            sizes.max_num_seqs,
            sizes.num_blocks,
            sizes.block_size,
            sizes.steps_in_flight,
            epoch=epoch,
            fails=self._fails,
        )

    def _new_scheduler(self, epoch: int, peers: dict[str, int]) -> Scheduler:
        sizes = self.sizes
        config = EngineConfig(
            model="fake",
            max_repeat=sizes.max_repeat,
            steps_in_flight=sizes.steps_in_flight,
            enable_prefix_caching=sizes.enable_prefix_caching,
        )
        return Scheduler(epoch, config, peers)

    def _geometry(self) -> EngineGeometry:
        sizes = self.sizes
        return fake_geometry(
            self.model,
            sizes.max_num_seqs,
            sizes.max_num_batched_tokens,
            sizes.num_blocks,
            sizes.block_size,
            self._announced["gpu_worker"],
        )

    def _after_turn(self, name: str) -> None:
        if name == "gpu_worker" and self.worker.finished:
            self._end_worker()
        if self.ring.num_turns % self._verify_every == 0:
            self.kv_manager.verify()
