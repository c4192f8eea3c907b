"""Actors' cores in one process, with a clock, a network and a schedule of their own: races on demand.

Every link between two actors is a queue in order, as a socket is; how long a message takes, whose turn it is
and how long the turn lasts is drawn from a seed. The same seed gives the same history.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pillion.messages.base import RingMessage
from pillion.messages.codec import Codec

NS_PER_US = 1_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in microseconds: uniform between the two numbers, and now and then a pause."""

    link_us: tuple[int, int] = (20, 400)
    turn_us: tuple[int, int] = (10, 200)
    worker_turn_us: tuple[int, int] = (200, 2_000)
    pause_us: int = 30_000
    pause_chance: float = 0.002  # per turn, as when the operating system runs somebody else


@dataclass(slots=True)
class Actor:
    """A core in the simulation."""

    core: Any
    codec: Codec[Any]
    wake_ns: int | None = 0  # when it wants to be called, messages apart
    busy_until_ns: int = 0


@dataclass(slots=True)
class Link:
    """What one actor has sent to another and is on its way."""

    frames: deque[tuple[int, bytes]] = field(default_factory=deque)  # arrival time, data
    last_arrival_ns: int = 0


class RingSimulation:
    """Runs cores until nobody has anything to do. Messages to names without a core go to `lost_and_found`."""

    def __init__(self, seed: int, pace: Pace | None = None) -> None:
        self.now_ns = 1_000_000_000
        self.num_messages = 0
        self.num_turns = 0
        self.lost_and_found: list[tuple[str, RingMessage]] = []
        self.after_turn: Callable[[str], None] = lambda name: None
        self._pace = pace or Pace()
        self._chance = random.Random(seed)
        self._actors: dict[str, Actor] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._encoder = msgspec.msgpack.Encoder()

    def add(self, name: str, core: Any, union: Any) -> None:
        """Adds an actor; it gets its first turn soon."""
        self._actors[name] = Actor(core, Codec(union))

    def remove(self, name: str) -> None:
        """The actor is gone with all that was on its way to it; what it had sent still arrives."""
        del self._actors[name]
        self._links = {ends: link for ends, link in self._links.items() if ends[1] != name}

    def send(self, sender: str, receiver: str, message: RingMessage) -> None:
        """Puts a message on its way."""
        if receiver not in self._actors:
            self.lost_and_found.append((receiver, message))
            return
        link = self._links.setdefault((sender, receiver), Link())
        arrival_ns = max(self.now_ns + self._draw(self._pace.link_us), link.last_arrival_ns)
        link.last_arrival_ns = arrival_ns
        link.frames.append((arrival_ns, self._encoder.encode(message)))
        self.num_messages += 1

    def wake(self, name: str) -> None:
        """The actor has something new to do that no message told it."""
        self._actors[name].wake_ns = self.now_ns

    def step(self) -> bool:
        """One turn of one actor. False: nobody has anything to do, ever."""
        while not (ready := self._ready()):
            next_ns = self._next_event_ns()
            if next_ns is None:
                return False
            self.now_ns = max(self.now_ns, next_ns)
        self._turn(self._chance.choice(ready))
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
            receiver
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
        times = []
        for (_, receiver), link in self._links.items():
            if link.frames:
                times.append(max(link.frames[0][0], self._actors[receiver].busy_until_ns))
        for actor in self._actors.values():
            if actor.wake_ns is not None:
                times.append(max(actor.wake_ns, actor.busy_until_ns))
        return min(times, default=None)

    def _turn(self, name: str) -> None:
        """As runtime/actor.py does it: messages that are there, one tick, everything out."""
        actor, core = self._actors[name], self._actors[name].core
        links = [link for (_, receiver), link in self._links.items() if receiver == name]
        while waiting := [
            link for link in links if link.frames and link.frames[0][0] <= self.now_ns
        ]:
            _, data = self._chance.choice(waiting).frames.popleft()
            core.on_message(actor.codec.decode(data), self.now_ns)
        actor.wake_ns = core.tick(self.now_ns)
        for receiver, message in core.outgoing:
            self.send(name, receiver, message)
        core.outgoing.clear()
        turn_us = self._pace.worker_turn_us if name == "gpu_worker" else self._pace.turn_us
        actor.busy_until_ns = self.now_ns + self._draw(turn_us)
        if self._chance.random() < self._pace.pause_chance:
            actor.busy_until_ns += self._pace.pause_us * NS_PER_US
        self.num_turns += 1
        self.after_turn(name)

    def _draw(self, between_us: tuple[int, int]) -> int:
        return self._chance.randint(*between_us) * NS_PER_US
