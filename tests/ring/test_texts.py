"""What clients read does not depend on who dies: scheduler, KV manager, worker and text edge, at any moment.

Each load runs twice, undisturbed and with deaths. The edge is the real one, with its stop strings, its
log-probabilities and its samples; requests of dead edges are sent again as the client library does it.
"""

import random
from typing import Any

import pytest
from edge_rig import byte_level_tokenizer
from fake_model import FakeModel
from memory_ring import Pace
from ring_engine import INBOXES, EngineSizes, RingEngine
from test_ring import PACES
from text_clients import Asked, TextClients

from pillion.actors.detokenizer.chat_template import ChatTemplate
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.base import RingMessage
from pillion.messages.sampling import SamplingParams
from pillion.messages.text import GenerateRequest
from pillion.runtime.outputs import RequestOutput

NUM_REQUESTS = 60
SIZES = (
    EngineSizes(vocab_size=12, max_num_seqs=6, num_blocks=60, max_repeat=8),
    EngineSizes(vocab_size=12, max_num_seqs=3, num_blocks=27, max_repeat=64, steps_in_flight=1),
    EngineSizes(vocab_size=260, max_num_seqs=8, num_blocks=80, enable_prefix_caching=False),
    EngineSizes(vocab_size=260, max_num_seqs=16, num_blocks=300, max_repeat=64, block_size=2),
)


def requests(seed: int, vocab_size: int) -> list[GenerateRequest]:
    """Of all kinds whose answers do not depend on time."""
    chance = random.Random(seed)
    trunk = [chance.randrange(vocab_size) for _ in range(40)]
    stops = [None, None, "\x03", ["\x01\x02", "\x07\x07"], ["\x05\x06\x07"]]
    made = []
    for number in range(NUM_REQUESTS):
        prompt = trunk[: chance.randrange(30)]
        prompt += [chance.randrange(vocab_size) for _ in range(chance.randrange(1, 8))]
        params: dict[str, Any] = {
            "n": chance.choice((1, 1, 1, 2, 4)),
            "max_tokens": chance.choice((1, 5, 20, 50)),
            "min_tokens": chance.choice((0, 0, 1)),
            "seed": chance.randrange(2**63),
            "temperature": chance.choice((0.0, 1.0)),
            "stop": chance.choice(stops),
            "include_stop_str_in_output": chance.random() < 0.3,
            "stop_token_ids": chance.choice((None, [3], [9, 10])),
            "logprobs": chance.choice((None, None, 0, 3)),
            "prompt_logprobs": chance.choice((None, None, None, 2)),
        }
        made.append(
            GenerateRequest(
                client_request_id=str(number),
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(**params),
                priority=chance.choice((0, 0, -1, 2)),
                cache_salt=chance.choice(("", "", "s")),
                stream=chance.random() < 0.7,
                return_prompt_token_ids=chance.random() < 0.3,
            )
        )
    return made


class DeafWorkerEngine(RingEngine[TextClients]):
    """The launcher's word of new lives never reaches the worker."""

    def tell(self, name: str, message: RingMessage) -> None:
        if name != "gpu_worker":
            super().tell(name, message)


def play(
    seed: int,
    sizes: EngineSizes,
    pace: Pace,
    kills: tuple[str, ...],
    num_kills: int,
    cancels: int,
    kind: type[RingEngine[TextClients]] = RingEngine,
) -> tuple[RingEngine[TextClients], dict[str, Asked]]:
    """All requests, some time apart; nothing may be left at the end."""
    text_model = TextModel(byte_level_tokenizer(), frozenset(), ChatTemplate({}, {}))
    model = FakeModel(sizes.vocab_size, sizes.max_model_len)
    clients = TextClients(text_model, seed)
    engine = kind(clients, model, seed, sizes, pace)
    chance = random.Random(seed)
    waiting = requests(seed, sizes.vocab_size)[::-1]
    while waiting or (engine.num_kills < num_kills and clients.num_open):
        for _ in range(chance.choice((0, 1, 1, 4))):
            if waiting:
                clients.ask(waiting.pop())
        if kills and engine.num_kills < num_kills:
            engine.kill(chance.choice(kills))
        if chance.random() * NUM_REQUESTS < cancels:
            clients.cancel_one()
        engine.ring.wake("detokenizer")
        for _ in range(chance.choice((3, 30, 100))):
            engine.ring.step()
    engine.finish()
    return engine, clients.asked


def shown(output: RequestOutput) -> dict[str, Any]:
    """All of an answer that must not change."""
    samples = [
        (s.text, s.token_ids, s.logprobs, s.cumulative_logprob, s.finish_reason, s.stop_reason)
        for s in output.outputs
    ]
    return {
        "samples": samples,
        "prompt_logprobs": output.prompt_logprobs,
        "prompt_token_ids": output.prompt_token_ids,
    }


def check_same(asked: dict[str, Asked], wanted: dict[str, Asked]) -> None:
    """Answers are those of an undisturbed run; of what was cancelled, their beginnings."""
    assert asked.keys() == wanted.keys()
    for request_id, one in asked.items():
        other = wanted[request_id]
        assert one.error is None, one.error
        if not one.was_cancelled:
            assert shown(one.output) == shown(other.output), request_id
            continue
        for sample, whole in zip(one.output.outputs, other.output.outputs, strict=True):
            assert sample.finish_reason in (whole.finish_reason, "abort")
            assert sample.token_ids == whole.token_ids[: len(sample.token_ids)]


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("name", [*INBOXES, "all"])
def test_answers_stay_as_they_are_whoever_dies(name: str, number: int) -> None:
    sizes, pace = SIZES[number], PACES[number]
    seed = number + 10 * [*INBOXES, "all"].index(name)
    _, wanted = play(seed, sizes, pace, (), 0, 0)
    kills = tuple(INBOXES) if name == "all" else (name,)
    engine, asked = play(seed, sizes, pace, kills, 30, cancels=5)
    assert engine.num_kills > 20
    check_same(asked, wanted)
    reasons = [s.stop_reason for one in asked.values() for s in one.output.outputs]
    assert any(isinstance(reason, str) for reason in reasons) or sizes.vocab_size > 12
    assert any(isinstance(reason, int) for reason in reasons)


def test_the_worker_knows_of_new_lives_by_the_plans_that_it_gets() -> None:
    """Its answers would go to nobody, else, when a plan for a new edge is faster than the word of it."""
    _, wanted = play(7, SIZES[0], PACES[0], (), 0, 0)
    kills = ("detokenizer", "scheduler")
    _, asked = play(7, SIZES[0], PACES[0], kills, 20, cancels=0, kind=DeafWorkerEngine)
    check_same(asked, wanted)
