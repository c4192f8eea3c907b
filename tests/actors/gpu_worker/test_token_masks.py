"""Rows that need masks: they wait alone, and sample nothing but what their masks allow."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pillion.messages.codec import pack_ids, unpack_int64
from pillion.messages.control import PeerRestarted
from pillion.messages.ids import FINISH_STOP
from pillion.messages.steps import TokenMasks

VOCAB_SIZE = 97
NUM_WORDS = 4


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def masks(*rows: tuple[int, int, int, Iterable[int]], epoch: int = 1) -> TokenMasks:
    """Rows of (slot, generation, position, allowed tokens)."""
    data = b""
    for _, _, _, allowed in rows:
        bits = sum(1 << token for token in set(allowed))
        data += bits.to_bytes(NUM_WORDS * 4, "little")
    return TokenMasks(
        epoch=epoch,
        slots=pack_ids(row[0] for row in rows),
        generations=pack_ids(row[1] for row in rows),
        positions=pack_ids(row[2] for row in rows),
        masks=data,
    )


def sampled(outputs: list[Any]) -> list[list[int]]:
    """The sequences with a token in each output."""
    return [unpack_int64(output.sequence_ids) for output in outputs]


def best_of(rig: Any, tokens: list[int], allowed: Iterable[int]) -> int:
    logits = rig.model.logits(tokens)[-1]
    return max(sorted(set(allowed)), key=lambda token: float(logits[token]))


@pytest.fixture(params=[1, 2], ids=["one in flight", "two in flight"])
def any_rig(request: pytest.FixtureRequest, make_rig: Callable[..., Any]) -> Any:
    return make_rig(steps_in_flight=request.param)


def test_a_lone_row_waits_and_takes_the_best_of_its_mask(any_rig: Any) -> None:
    rig, tokens = any_rig, prompt(5)
    new = [rig.new(0, tokens, needs_masks=True)]
    assert rig.step([(0, 0, 5)], new=new, repeat=9) == []
    for _ in range(4):
        allowed = random.Random(len(tokens)).sample(range(90), 7)
        tokens.append(best_of(rig, tokens, allowed))
        rig.worker.on_message(masks((0, 0, len(tokens) - 1, allowed)), 0)
        (output,) = rig.run_dry()
        assert sampled([output]) == [[1000]]
    assert rig.tokens(1000) == tokens[5:]


def test_a_mask_may_come_before_its_sequence(any_rig: Any) -> None:
    rig, tokens = any_rig, prompt(5)
    rig.worker.on_message(masks((0, 0, 5, [7])), 0)
    rig.step([(0, 0, 5)], new=[rig.new(0, tokens, needs_masks=True)])
    assert rig.tokens(1000) == [7]


def test_other_rows_go_on_with_the_same_tokens(any_rig: Any) -> None:
    rig, free, bound = any_rig, prompt(6), prompt(4, 1)
    new = [rig.new(0, free), rig.new(1, bound, needs_masks=True)]
    outputs = rig.step([(0, 0, 6), (1, 0, 4)], new=new, repeat=8)
    assert len(outputs) == 8
    assert all(ids == [1000] for ids in sampled(outputs))
    assert rig.tokens(1000) == rig.model.greedy(free, 8)
    rig.worker.on_message(masks((1, 0, 4, [11, 12])), 0)
    outputs = rig.step([(0,), (1,)], repeat=3)
    assert sampled(outputs) == [[1000, 1010], [1000], [1000]]
    assert rig.tokens(1000) == rig.model.greedy(free, 11)
    assert rig.tokens(1010) == [best_of(rig, bound, [11, 12])]


def test_a_row_that_waited_computes_what_it_would_have_computed(any_rig: Any) -> None:
    """Everything is allowed, but late: the answer is the one of a free row."""
    rig, tokens, other = any_rig, prompt(7), prompt(3, 2)
    new = [rig.new(0, tokens, needs_masks=True), rig.new(1, other)]
    rig.step([(0, 0, 7), (1, 0, 3)], new=new, repeat=2)
    for position in range(7, 13):
        rig.worker.on_message(masks((0, 0, position, range(VOCAB_SIZE))), 0)
        rig.step([(0,), (1,)], repeat=3)
    assert rig.tokens(1000) == rig.model.greedy(tokens, 6)
    assert rig.tokens(1010) == rig.model.greedy(other, 20)


def test_a_mask_that_comes_during_the_forward_pass_is_in_time(rig: Any) -> None:
    new = [rig.new(0, prompt(6)), rig.new(1, prompt(4, 1), needs_masks=True)]
    rig.worker.on_message(rig.plan([(0, 0, 6), (1, 0, 4)], new=new), 0)
    assert rig.worker.tick(0) is not None
    assert rig.worker.outgoing == []
    rig.worker.on_message(masks((1, 0, 4, [3])), 0)
    (output,) = rig.run_dry()
    assert sampled([output]) == [[1000, 1010]]


def test_masks_of_other_positions_and_tenants_count_for_nothing(any_rig: Any) -> None:
    rig = any_rig
    new = [rig.new(0, prompt(5), generation=4, needs_masks=True)]
    rig.step([(0, 0, 5)], new=new, repeat=5)
    for wrong in (masks((0, 3, 5, [1])), masks((0, 4, 4, [1])), masks((0, 4, 6, [1]))):
        rig.worker.on_message(wrong, 0)
        assert rig.run_dry() == []
    rig.worker.on_message(masks((0, 4, 5, [2])), 0)
    rig.run_dry()
    assert rig.tokens(1004) == [2]


def test_a_plan_ends_the_wait(any_rig: Any) -> None:
    rig = any_rig
    new = [rig.new(0, prompt(5), needs_masks=True)]
    assert rig.step([(0, 0, 5)], new=new, repeat=5) == []
    outputs = rig.run(rig.plan([], released=[0]))
    assert sampled(outputs) == [[], []]
    assert [output.plan_id for output in outputs] == [0, 1]


def test_a_finished_row_waits_for_nothing(any_rig: Any) -> None:
    rig = any_rig
    new = [rig.new(0, prompt(5), needs_masks=True, stop_token_ids=[9])]
    rig.worker.on_message(masks((0, 0, 5, [9])), 0)
    outputs = rig.step([(0, 0, 5)], new=new, repeat=5)
    assert outputs[0].finish == bytes([FINISH_STOP])
    assert rig.run_dry() == []
    outputs += rig.run(rig.plan([], released=[0]))
    assert rig.tokens(1000) == [9]


def test_rows_that_have_ended_are_no_reason_not_to_wait(any_rig: Any) -> None:
    """The step behind was launched when nobody knew."""
    rig, free, bound = any_rig, prompt(6), prompt(4, 1)
    last = rig.model.greedy(free, 1)
    new = [rig.new(0, free, stop_token_ids=last), rig.new(1, bound, needs_masks=True)]
    rig.worker.on_message(masks((1, 0, 4, [3])), 0)
    outputs = rig.step([(0, 0, 6), (1, 0, 4)], new=new, repeat=5)
    assert sampled(outputs) == [[1000, 1010]]
    rig.worker.on_message(masks((1, 0, 5, [4])), 0)
    assert sampled(rig.run_dry()) == [[1010]]
    assert rig.tokens(1010) == [3, 4]


def test_the_next_tenant_needs_no_mask_unless_it_says_so(any_rig: Any) -> None:
    rig, tokens = any_rig, prompt(3, 3)
    new = [rig.new(0, prompt(5), needs_masks=True)]
    rig.worker.on_message(masks((0, 0, 5, [9])), 0)
    rig.step([(0, 0, 5)], new=new)
    rig.step([(0, 0, 3)], new=[rig.new(0, tokens, generation=1)], released=[0], repeat=4)
    assert rig.tokens(1001) == rig.model.greedy(tokens, 4)


def test_a_new_scheduler_counts_generations_from_the_beginning(any_rig: Any) -> None:
    rig = any_rig
    rig.step([(0, 0, 5)], new=[rig.new(0, prompt(5), generation=8, needs_masks=True)], repeat=3)
    rig.worker.on_message(masks((0, 8, 5, [1])), 0)
    rig.worker.on_message(PeerRestarted(actor="scheduler", epoch=2), 0)
    rig.run_dry()
    rig.worker.on_message(masks((0, 9, 5, [1])), 0)
    rig.epoch, rig.next_plan_id, rig.generations = 2, 0, {}
    rig.worker.on_message(masks((0, 1, 4, [5]), epoch=2), 0)
    new = [rig.new(0, prompt(4), generation=1, needs_masks=True)]
    rig.step([(0, 0, 4)], new=new, repeat=3)
    assert rig.tokens(1001) == [5]


def test_min_tokens_and_bad_words_never_lead_out_of_the_mask(any_rig: Any) -> None:
    rig = any_rig
    new = [
        rig.new(0, prompt(5), needs_masks=True, stop_token_ids=[9], min_tokens=3, bad_words=[[4]])
    ]
    rig.worker.on_message(masks((0, 0, 5, [4, 9])), 0)
    rig.step([(0, 0, 5)], new=new)
    assert rig.tokens(1000)[0] in (4, 9)


def test_random_masks_and_pauses(any_rig: Any) -> None:
    """Frequencies do not matter here: no token outside of its mask, and no position left out."""
    rig, choose = any_rig, random.Random(5)
    prompts = [prompt(4 + seed, seed) for seed in range(4)]
    new = [
        rig.new(slot, tokens, needs_masks=slot > 0, temperature=float(slot), seed=slot)
        for slot, tokens in enumerate(prompts)
    ]
    rows = [(slot, 0, len(tokens)) for slot, tokens in enumerate(prompts)]
    rig.step(rows, new=new)
    for _ in range(30):
        for slot in choose.sample((1, 2, 3), k=choose.randint(0, 3)):
            position = len(prompts[slot]) + len(rig.tokens(1000 + 10 * slot))
            allowed = random.Random(100 * slot + position).sample(range(90), 5)
            rig.worker.on_message(masks((slot, 0, position, allowed)), 0)
        rig.step([(slot,) for slot in range(4)])
    for slot in (1, 2, 3):
        produced = rig.tokens(1000 + 10 * slot)
        assert produced
        for place, token in enumerate(produced):
            position = len(prompts[slot]) + place
            assert token in random.Random(100 * slot + position).sample(range(90), 5)
    assert rig.tokens(1000) == rig.model.greedy(prompts[0], len(rig.tokens(1000)))
