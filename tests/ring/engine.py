"""The ring with an edge that judges every token, and random loads for it."""

import random
from collections.abc import Callable

from fake_edge import FakeEdge, make_request, make_sampling
from fake_model import FakeModel
from fake_worker import FakeRow, Fault
from memory_ring import Pace
from ring_engine import EngineSizes, RingEngine

from pillion.messages.requests import NewRequest
from pillion.runtime.errors import InvariantBroken

__all__ = ["Engine", "EngineSizes", "RandomLoad"]


class Engine(RingEngine[FakeEdge]):
    """Its edge knows what the model says alone."""

    def __init__(
        self,
        seed: int,
        sizes: EngineSizes | None = None,
        pace: Pace | None = None,
        verify_every: int = 50,
        fails: Callable[[list[FakeRow]], Fault | None] = lambda rows: None,
    ) -> None:
        sizes = sizes or EngineSizes()
        model = FakeModel(sizes.vocab_size, sizes.max_model_len, sizes.poison_every)
        super().__init__(FakeEdge(model), model, seed, sizes, pace, verify_every, fails)

    def submit(self, request: NewRequest) -> None:
        """The edge sends a request."""
        self.edge.submit(request)
        self.ring.wake("detokenizer")

    def abort(self, sequence_ids: list[int]) -> None:
        """The edge gives up samples."""
        self.edge.abort(sequence_ids)
        self.ring.wake("detokenizer")

    def check_nothing_left(self) -> None:
        """Also, nobody has read what it must not."""
        super().check_nothing_left()
        self._check_sharing()

    def _check_sharing(self) -> None:
        """KV is shared within a salt only, and within a request only if there is no prefix cache."""
        for reader, writer in self.worker.shared:
            one, other = self.edge.samples[reader], self.edge.samples[writer]
            if one.salt != other.salt:
                raise InvariantBroken(f"sequence {reader} ({one.salt!r}) read {other.salt!r}")
            if not self.sizes.enable_prefix_caching and one.request_id != other.request_id:
                raise InvariantBroken(f"sequence {reader} read sequence {writer} without a cache")


class RandomLoad:
    """Requests of every kind, drawn from a seed: prompts that share prefixes, n, salts, deadlines, aborts."""

    def __init__(self, engine: Engine, seed: int, max_open: int = 30) -> None:
        self.engine = engine
        self.num_requests = 0
        self._chance = random.Random(seed)
        self._max_open = max_open
        self._next_id = 1
        self._trunks = [
            [self._chance.randrange(engine.sizes.vocab_size) for _ in range(40)] for _ in range(3)
        ]

    def run(self, num_messages: int, turns_between: int = 30) -> None:
        """Submits requests, and aborts some, until so many messages have passed; the last are still open."""
        chance, edge, ring = self._chance, self.engine.edge, self.engine.ring
        while ring.num_messages < num_messages:
            if len(edge.open_samples) < self._max_open:
                for _ in range(chance.choice((1, 1, 1, 5))):
                    self._submit()
            if edge.open_samples and chance.random() < 0.15:
                some = chance.sample(sorted(edge.open_samples), 1)
                # An abort may name a sequence that has just ended.
                self.engine.abort([*some, chance.randrange(1, self._next_id)])
            if self.engine.num_free_leased and chance.random() < 0.05:
                self.engine.recall(chance.randint(1, 8))
            for _ in range(chance.randrange(turns_between)):
                ring.step()

    def _submit(self) -> None:
        chance, sizes, now_ns = self._chance, self.engine.sizes, self.engine.ring.now_ns
        n = chance.choice((1, 1, 1, 1, 2, 4))
        deadline_ns = None
        if chance.random() < 0.1:
            deadline_ns = now_ns + chance.randrange(200_000_000)
        request = make_request(
            request_id=self._next_id,
            prompt=self._prompt(),
            sampling=make_sampling(
                max_tokens=chance.choice((1, 2, 10, 30, sizes.max_model_len)),
                stop_token_ids=chance.choice(([], [1], [1, 2, 3])),
                temperature=chance.choice((0.0, 1.0)),
                min_tokens=chance.choice((0, 0, 1)),
                prompt_logprobs=chance.choice((None,) * 9 + (0,)),
                needs_masks=chance.random() < 0.2,
            ),
            arrival_time_ns=now_ns,
            seeds=[chance.randrange(2**63) for _ in range(n)],
            client_key=chance.randrange(3),
            deadline_ns=deadline_ns,
            priority=chance.choice((0, 0, 0, -1, 5)),
            salt=chance.choice(("", "", "", "s", "t")),
        )
        self._next_id += n
        self.num_requests += 1
        self.engine.submit(request)

    def _prompt(self) -> list[int]:
        """A shared trunk and a tail of its own, or a conversation that goes on behind an answer."""
        chance, sizes = self._chance, self.engine.sizes
        trunk = chance.choice(self._trunks)[: chance.randrange(41)]
        if self._next_id > 1 and chance.random() < 0.3:
            recent = max(1, self._next_id - 12)  # older answers are evicted
            sample = self.engine.edge.samples[chance.randrange(recent, self._next_id)]
            trunk = sample.prompt + sample.token_ids
        tail = [chance.randrange(sizes.vocab_size) for _ in range(chance.randrange(8))]
        prompt = (trunk + tail)[: sizes.max_model_len]
        return prompt or [0]
