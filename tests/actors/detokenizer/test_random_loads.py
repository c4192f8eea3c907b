"""Requests of every kind under random events: each ends once, with the text and tokens that are right."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from edge_rig import EdgeRig

from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.codec import unpack_ids
from pillion.messages.control import PeerRestarted
from pillion.messages.ids import FINISH_LENGTH, FINISH_STOP
from pillion.messages.requests import AbortRequest, NewRequest, RequestClosed, RequestRejected
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import CancelRequest, GenerateChunk, GenerateRequest, RequestFailed

PIECES = ["the", " world", "é", "好", "🙂", "ab", "b", " ", "hello", "an"]
STOPS = [None, ["b"], ["lo w", "🙂"], ["好好", "ab"]]


@dataclass
class Row:
    """One sample at the engine."""

    sequence_id: int
    start: int  # prompt tokens
    token_ids: list[int]
    finish: int
    num_sent: int = 0
    ended: bool = False  # aborted, or all is sent


@dataclass
class Asked:
    """One request at its client."""

    request: GenerateRequest
    expected: dict[int, list[int]] = field(default_factory=dict)
    chunks: dict[int, list[GenerateChunk]] = field(default_factory=dict)
    failure: RequestFailed | None = None
    disturbed: bool = False  # cancelled, closed or rejected: it may end early

    @property
    def ended(self) -> bool:
        n = self.request.sampling_params.n  # type: ignore[union-attr]
        ends = [parts for parts in self.chunks.values() if parts[-1].finish_reason is not None]
        return self.failure is not None or len(ends) == n


class World:
    """Clients, engine and edge; every event is drawn from one seed."""

    def __init__(self, model: TextModel, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = EdgeRig(model)
        self.end_id = next(iter(model.end_ids))
        self.asked: dict[tuple[int, str], Asked] = {}
        self.rows: dict[int, Row] = {}
        self.sessions: set[int] = set()
        self.next_session = 1
        self.num_asked = 0
        self.epochs = {"scheduler": 1, "gpu_worker": 1}

    def connect(self) -> None:
        if len(self.sessions) < 4:
            self.rig.connect(self.next_session)
            self.sessions.add(self.next_session)
            self.next_session += 1

    def disconnect(self) -> None:
        if len(self.sessions) > 1 and self.chance.random() < 0.3:
            session = self.chance.choice(sorted(self.sessions))
            self.sessions.discard(session)
            self.rig.edge.close_session(session)
            self.rig.turn()
            for key in [key for key in self.asked if key[0] == session]:
                del self.asked[key]

    def ask(self) -> None:
        chance = self.chance
        session = chance.choice(sorted(self.sessions))
        self.num_asked += 1
        params = SamplingParams(
            n=chance.choice([1, 1, 3]),
            max_tokens=40,
            stop=chance.choice(STOPS),
            include_stop_str_in_output=chance.random() < 0.3,
        )
        request = GenerateRequest(
            client_request_id=str(self.num_asked),
            prompt="x" * chance.randrange(1, 9),
            sampling_params=params,
            stream=chance.random() < 0.7,
        )
        self.asked[session, request.client_request_id] = Asked(request)
        self.rig.send(session, request)
        for admitted in self.rig.take_ring(NewRequest):
            self.admit(admitted, self.asked[session, request.client_request_id])

    def admit(self, admitted: NewRequest, asked: Asked) -> None:
        tokenizer = self.rig.model.tokenizer
        for index in range(admitted.n):
            text = "".join(self.chance.choices(PIECES, k=self.chance.randrange(1, 9)))
            token_ids = (
                tokenizer.encode(text, False) if self.chance.random() < 0.5 else list(text.encode())
            )
            token_ids = token_ids[: self.chance.randrange(1, 30)]
            finish = self.chance.choice([FINISH_LENGTH, FINISH_STOP])
            if finish == FINISH_STOP:
                token_ids.append(self.end_id)
            asked.expected[index] = token_ids
            sequence_id = admitted.request_id + index
            start = len(admitted.prompt_token_ids) // 4
            self.rows[sequence_id] = Row(sequence_id, start, token_ids, finish)

    def step(self) -> None:
        running = [row for row in self.rows.values() if not row.ended]
        rows = []
        for row in self.chance.sample(running, k=min(len(running), 6)):
            count = self.chance.choice([1, 1, 1, 2, 5])
            # A worker that was restarted may say again what is known.
            begin = max(row.num_sent - self.chance.choice([0, 0, 0, 2]), 0)
            new = row.token_ids[begin : row.num_sent + count]
            row.num_sent = begin + len(new)
            row.ended = row.num_sent == len(row.token_ids)
            rows.append((row.sequence_id, row.start + begin, new, row.finish if row.ended else 0))
        self.rig.step(*rows, epoch=self.epochs["gpu_worker"], plan_epoch=self.epochs["scheduler"])

    def cancel(self) -> None:
        open_keys = [key for key, asked in self.asked.items() if not asked.ended]
        if open_keys:
            session, client_request_id = self.chance.choice(open_keys)
            self.asked[session, client_request_id].disturbed = True
            self.rig.send(session, CancelRequest(client_request_id=client_request_id))

    def close(self) -> None:
        running = [row for row in self.rows.values() if not row.ended]
        if running:
            row = self.chance.choice(running)
            row.ended = True
            for asked in self.asked.values():
                asked.disturbed = True  # which one it is, nobody has to know
            self.rig.ring(
                RequestClosed(
                    epoch=self.epochs["scheduler"],
                    sequence_id=row.sequence_id,
                    finish_reason="timeout",
                    worker_epoch=self.epochs["gpu_worker"],
                )
            )

    def be_slow(self) -> None:
        session = self.chance.choice(sorted(self.sessions))
        if self.chance.random() < 0.5:
            self.rig.edge.on_slow(session, self.rig.now_ns)
        else:
            self.rig.edge.on_caught_up(session)
        self.rig.turn()

    def restart(self) -> None:
        """One of the two dies, and what the edge had from it last is told to nobody else."""
        actor = self.chance.choice(sorted(self.epochs))
        old = dict(self.epochs)
        self.epochs[actor] += 1
        self.obey()
        self.rig.ring(PeerRestarted(actor=actor, epoch=self.epochs[actor]))
        late = [
            (row.sequence_id, row.start + row.num_sent, [self.chance.randrange(9)], 0)
            for row in self.rows.values()
            if not row.ended
        ]
        self.rig.step(*late, epoch=old["gpu_worker"], plan_epoch=old["scheduler"])
        open_ids = set()
        for again in self.rig.take_ring(NewRequest):
            for index in range(again.n):
                row = self.rows[again.request_id + index]
                produced = unpack_ids(again.produced_token_ids[index])
                assert produced == row.token_ids[: len(produced)]
                if index in again.finished:
                    continue
                open_ids.add(row.sequence_id)
                assert len(produced) == row.num_sent or row.num_sent < len(produced)
                assert again.worker_epoch == self.epochs["gpu_worker"]
        for row in self.rows.values():
            row.ended = row.ended or row.sequence_id not in open_ids

    def obey(self) -> None:
        """The scheduler ends what it was told to; rows that were under way may still come."""
        for abort in self.rig.take_ring(AbortRequest):
            for sequence_id in abort.sequence_ids:
                if sequence_id in self.rows and self.chance.random() < 0.9:
                    self.rows[sequence_id].ended = True

    def read(self) -> None:
        for session in sorted(self.sessions):
            for reply in self.rig.take(session):
                asked = self.asked[session, reply.client_request_id]
                assert asked.failure is None
                if isinstance(reply, RequestFailed):
                    asked.failure = reply
                else:
                    asked.chunks.setdefault(reply.index, []).append(reply)

    def finish(self) -> None:
        for session in self.sessions:
            self.rig.edge.on_caught_up(session)
        for _ in range(2000):
            self.step()
            self.obey()
            if not any(not row.ended for row in self.rows.values()):
                break
        self.rig.turn()
        self.read()
        assert self.rig.edge.gauges["open_requests"] == 0
        for asked in self.asked.values():
            self.check(asked)

    def check(self, asked: Asked) -> None:
        assert asked.ended, asked
        if asked.failure is not None:
            assert asked.disturbed
            return
        params = asked.request.sampling_params
        assert params is not None
        usages = [chunk.usage for parts in asked.chunks.values() for chunk in parts if chunk.usage]
        assert len(usages) == 1
        for index, parts in asked.chunks.items():
            assert asked.request.stream or len(parts) == 1
            text, token_ids = "", []
            for place, chunk in enumerate(parts):
                assert chunk.offset == len(token_ids)
                assert (chunk.finish_reason is not None) == (place == len(parts) - 1)
                text += chunk.text
                token_ids += unpack_ids(chunk.token_ids)
            expected = asked.expected[index]
            assert token_ids == expected[: len(token_ids)]
            whole, stop = self.expected_text(token_ids, params, parts[-1].finish_reason)
            assert text == whole
            assert (parts[-1].stop_reason or None) == stop
            if not asked.disturbed and stop is None:
                assert token_ids == expected

    def expected_text(
        self, token_ids: list[int], params: SamplingParams, reason: str | None
    ) -> tuple[str, str | None]:
        text = self.rig.model.tokenizer.decode(token_ids, True)
        found = [
            (text.find(stop) + len(stop), -len(stop), stop)
            for stop in params.stop_strings
            if stop in text
        ]
        if not found or reason in ("abort", "timeout"):
            return text, None
        end, _, stop = min(found)
        return text[:end] if params.include_stop_str_in_output else text[: end - len(stop)], stop


@pytest.mark.parametrize("seed", range(40))
def test_random_loads(text_model: TextModel, seed: int) -> None:
    world = World(text_model, seed)
    world.connect()
    events: list[tuple[Any, int]] = [
        (world.ask, 6),
        (world.step, 20),
        (world.cancel, 1),
        (world.close, 1),
        (world.be_slow, 3),
        (world.connect, 1),
        (world.disconnect, 1),
        (world.restart, 1),
        (world.obey, 8),
        (world.read, 8),
    ]
    for _ in range(300):
        event = world.chance.choices([each[0] for each in events], [each[1] for each in events])[0]
        event()
    world.finish()


def test_a_rejected_request_is_no_other(text_model: TextModel) -> None:
    world = World(text_model, 1)
    world.connect()
    for _ in range(5):
        world.ask()
    first = min(world.rows)
    world.rig.ring(RequestRejected(epoch=1, request_id=first, code="overloaded", message="full"))
    world.read()
    failed = [asked for asked in world.asked.values() if asked.failure]
    assert len(failed) == 1
    failed[0].disturbed = True
    world.finish()
