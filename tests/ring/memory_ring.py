"""Actors' cores in one process, with a clock, a network and a schedule of their own: races on demand.

Every link between two actors is a queue in order, as a socket is; how long a message takes, whose turn it is
and how long the turn lasts is drawn from a seed. The same seed gives the same history. Actors can be killed: their
inbox is lost, and of what they had sent a part, at the end.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pillion.messages.base import RingMessage
from pillion.messages.codec import Codec
from pillion.messages.inboxes import lives_in
from pillion.runtime.lives import Lives

NS_PER_US = 1_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in microseconds: uniform between the two numbers, and now and then a pause."""

    link_us: tuple[int, int] = (20, 400)
    turn_us: tuple[int, int] = (10, 200)
    worker_turn_us: tuple[int, int] = (200, 2_000)
    pause_us: int = 30_000
    pause_chance: float = 0.002  # per turn, as when the operating system runs somebody else


@dataclass(frozen=True, slots=True)
class Life:
    """One life of an actor, and the name of its inbox."""

    name: str
    epoch: int


@dataclass(slots=True)
class Actor:
    """A core in the simulation."""

    life: Life
    core: Any
    codec: Codec[Any]
    peers: Lives  # to whom its messages go
    wake_ns: int | None = 0  # when it wants to be called, messages apart
    busy_until_ns: int = 0


@dataclass(slots=True)
class Link:
    """What one life has sent to another and is on its way."""

    frames: deque[tuple[int, bytes]] = field(default_factory=deque)  # arrival time, data
    last_arrival_ns: int = 0


class RingSimulation:
    """Runs cores until nobody has anything to do. Messages to names that never had a core go to `lost_and_found`."""

    def __init__(self, seed: int, pace: Pace | None = None) -> None:
        self.now_ns = 1_000_000_000
        self.num_messages = 0
        self.num_turns = 0
        self.lost_and_found: list[tuple[str, RingMessage]] = []
        self.after_turn: Callable[[str], None] = lambda name: None
        self.chance = random.Random(seed)
        self._pace = pace or Pace()
        self._actors: dict[str, Actor] = {}
        self._names: set[str] = set()
        self._links: dict[tuple[Life, Life], Link] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._num_timers = 0
        self._encoder = msgspec.msgpack.Encoder()

    def add(
        self,
        name: str,
        core: Any,
        union: Any,
        epoch: int = 1,
        peer_epochs: dict[str, int] | None = None,
    ) -> None:
        """Adds an actor; it gets its first turn soon."""
        self._actors[name] = Actor(Life(name, epoch), core, Codec(union), Lives(peer_epochs))
        self._names.add(name)

    def kill(self, name: str, loses_words: bool = True) -> None:
        """The actor is gone with all that was on its way to it; the last of what it had sent may be lost too."""
        life = self._actors.pop(name).life
        for (sender, receiver), link in list(self._links.items()):
            if receiver == life:
                del self._links[sender, receiver]
            elif sender == life and loses_words:
                for _ in range(self.chance.randint(0, len(link.frames))):
                    link.frames.pop()

    def epoch_of(self, name: str) -> int | None:
        """The actor's current life; None while it has none."""
        actor = self._actors.get(name)
        return None if actor is None else actor.life.epoch

    def send(self, sender: Life, receiver: Life, message: RingMessage) -> None:
        """Puts a message on its way. If nobody reads that inbox it is lost."""
        if receiver.name not in self._names:
            self.lost_and_found.append((receiver.name, message))
        if self.epoch_of(receiver.name) != receiver.epoch:
            return
        link = self._links.setdefault((sender, receiver), Link())
        arrival_ns = max(self.now_ns + self._draw(self._pace.link_us), link.last_arrival_ns)
        link.last_arrival_ns = arrival_ns
        link.frames.append((arrival_ns, self._encoder.encode(message)))
        self.num_messages += 1

    def call_later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Calls the action when this much time has passed."""
        self._num_timers += 1
        heapq.heappush(self._timers, (self.now_ns + delay_ns, self._num_timers, action))

    def wake(self, name: str) -> None:
        """The actor has something new to do that no message told it."""
        if name in self._actors:
            self._actors[name].wake_ns = self.now_ns

    def step(self) -> bool:
        """One turn of one actor. False: nobody has anything to do, ever."""
        while True:
            while self._timers and self._timers[0][0] <= self.now_ns:
                heapq.heappop(self._timers)[2]()
            if ready := self._ready():
                break
            next_ns = self._next_event_ns()
            if next_ns is None:
                return False
            self.now_ns = max(self.now_ns, next_ns)
        self._turn(self.chance.choice(ready))
        return True

    def run(self, until: Callable[[], bool], max_turns: int) -> None:
        """Turns until the condition holds. Raises RuntimeError if it does not come to that."""
        for _ in range(max_turns):
            if until():
                return
            if not self.step():
                break
        if not until():
            raise RuntimeError(f"nothing more happens, or not within {max_turns} turns")

    def settle(self, max_turns: int) -> None:
        """Turns until all is quiet: no message on its way and nobody with work that is due."""
        for _ in range(max_turns):
            if not self.step():
                return
        raise RuntimeError(f"still busy after {max_turns} turns")

    def _ready(self) -> list[str]:
        arrived = {
            receiver.name
            for (_, receiver), link in self._links.items()
            if link.frames and link.frames[0][0] <= self.now_ns
        }
        return [
            name
            for name, actor in self._actors.items()
            if actor.busy_until_ns <= self.now_ns
            and (name in arrived or (actor.wake_ns is not None and actor.wake_ns <= self.now_ns))
        ]

    def _next_event_ns(self) -> int | None:
        times = [self._timers[0][0]] if self._timers else []
        for (_, receiver), link in self._links.items():
            if link.frames:
                times.append(max(link.frames[0][0], self._actors[receiver.name].busy_until_ns))
        for actor in self._actors.values():
            if actor.wake_ns is not None:
                times.append(max(actor.wake_ns, actor.busy_until_ns))
        return min(times, default=None)

    def _turn(self, name: str) -> None:
        """As runtime/actor.py does it: messages that are there, one tick, everything out."""
        actor = self._actors[name]
        links = [link for (_, receiver), link in self._links.items() if receiver == actor.life]
        while waiting := [
            link for link in links if link.frames and link.frames[0][0] <= self.now_ns
        ]:
            _, data = self.chance.choice(waiting).frames.popleft()
            self._take(actor, actor.codec.decode(data))
        actor.wake_ns = actor.core.tick(self.now_ns)
        self._post(actor)
        turn_us = self._pace.worker_turn_us if name == "gpu_worker" else self._pace.turn_us
        actor.busy_until_ns = self.now_ns + self._draw(turn_us)
        if self.chance.random() < self._pace.pause_chance:
            actor.busy_until_ns += self._pace.pause_us * NS_PER_US
        self.num_turns += 1
        self.after_turn(name)

    def _take(self, actor: Actor, message: RingMessage) -> None:
        """What was said before a peer's new life is for its old one."""
        for name, epoch in lives_in(message):
            if epoch > actor.peers[name]:
                self._post(actor)
                actor.peers.adopt(name, epoch)
        actor.core.on_message(message, self.now_ns)

    def _post(self, actor: Actor) -> None:
        for receiver, message in actor.core.outgoing:
            self.send(actor.life, Life(receiver, actor.peers[receiver]), message)
        actor.core.outgoing.clear()

    def _draw(self, between_us: tuple[int, int]) -> int:
        return self.chance.randint(*between_us) * NS_PER_US
