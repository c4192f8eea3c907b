"""What the edge asks its grammar process, and how it goes on when that is lost."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from pillion.actors.detokenizer.grammars.calls import (
    AdvanceGrammar,
    CloseGrammar,
    CompileGrammar,
    GrammarCall,
    OpenGrammar,
    TokenMask,
)
from pillion.actors.detokenizer.grammars.desk import (
    ANSWER_LIMIT_NS,
    MAX_STRIKES,
    FollowedGrammar,
    GrammarDesk,
)
from pillion.actors.detokenizer.grammars.source import GrammarSource
from pillion.messages.codec import pack_ids, unpack_ids
from pillion.messages.requests import RequestScheduled

SOURCE = GrammarSource(kind="regex", text="a+")
OTHER = GrammarSource(kind="regex", text="b+")
MASK = b"\x07\x00\x00\x00\x00\x00\x00\x00"


@pytest.fixture
def desk() -> GrammarDesk:
    desk = GrammarDesk()
    desk.vocab_size = 40
    return desk


def follow(
    desk: GrammarDesk,
    sequence_id: int,
    *token_ids: int,
    thinks: bool = False,
    num_thoughts: int = 0,
    **fields: Any,
) -> FollowedGrammar:
    grammar = FollowedGrammar(
        sequence_id=sequence_id,
        source=SOURCE,
        param="structured_outputs",
        end_ids=[2],
        num_prompt_tokens=10,
        token_ids=array("i", token_ids),
        **fields,
    )
    desk.follow(grammar, thinks, num_thoughts)
    return grammar


def opened(
    token_ids: list[int], opening_ids: Sequence[int] = (), sequence_id: int = 5
) -> OpenGrammar:
    return OpenGrammar(
        sequence_id=sequence_id,
        source=SOURCE,
        token_ids=pack_ids(token_ids),
        end_ids=[2],
        opening_ids=list(opening_ids),
    )


def add(
    desk: GrammarDesk,
    grammar: FollowedGrammar,
    token_id: int,
    thinks: bool = False,
    num_thoughts: int = 0,
) -> None:
    grammar.token_ids.append(token_id)
    desk.advance(grammar.sequence_id, 1, thinks, num_thoughts)


def calls(desk: GrammarDesk) -> list[GrammarCall]:
    taken, desk.calls[:] = list(desk.calls), []
    return taken


def seat(desk: GrammarDesk, sequence_id: int, slot: int, epoch: int = 1) -> None:
    desk.on_scheduled(
        RequestScheduled(
            epoch=epoch,
            sequence_id=sequence_id,
            num_cached_tokens=0,
            miss_reason="",
            slot=slot,
            generation=slot + 100,
        )
    )


def answer(desk: GrammarDesk, sequence_id: int, num_tokens: int, mask: bytes = MASK) -> bool:
    return desk.on_mask(TokenMask(sequence_id=sequence_id, num_tokens=num_tokens, mask=mask))


def rows(desk: GrammarDesk) -> list[tuple[int, int, int, int]]:
    """(epoch, slot, generation, position) of the masks for the worker."""
    return [
        (message.epoch, *row)
        for message in desk.take_masks()
        for row in zip(
            unpack_ids(message.slots),
            unpack_ids(message.generations),
            unpack_ids(message.positions),
            strict=True,
        )
    ]


def test_a_mask_waits_for_its_slot_and_goes_out_once(desk: GrammarDesk) -> None:
    follow(desk, 5)
    assert answer(desk, 5, 0)
    assert rows(desk) == []
    seat(desk, 5, slot=3)
    (message,) = desk.take_masks()
    assert (message.masks, unpack_ids(message.positions)) == (MASK, [10])
    assert rows(desk) == []


def test_each_token_is_told_and_brings_the_next_mask(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5)
    seat(desk, 5, slot=3)
    assert rows(desk) == []
    calls(desk)
    add(desk, grammar, 7)
    assert calls(desk) == [AdvanceGrammar(sequence_id=5, token_ids=pack_ids([7]))]
    assert not answer(desk, 5, 0), "the mask before the token is of no use any more"
    assert rows(desk) == []
    assert answer(desk, 5, 1)
    assert rows(desk) == [(1, 3, 103, 11)]


def test_a_sequence_that_is_seated_again_gets_its_mask_again(desk: GrammarDesk) -> None:
    follow(desk, 5)
    seat(desk, 5, slot=3)
    answer(desk, 5, 0)
    assert rows(desk) == [(1, 3, 103, 10)]
    seat(desk, 5, slot=0, epoch=2)
    assert rows(desk) == [(2, 0, 100, 10)]


def test_nothing_is_sent_to_slots_of_an_engine_that_is_gone(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5)
    seat(desk, 5, slot=3)
    answer(desk, 5, 0)
    desk.unseat()
    assert rows(desk) == []
    add(desk, grammar, 7)
    answer(desk, 5, 1)
    assert rows(desk) == []
    seat(desk, 5, slot=1)
    assert rows(desk) == [(1, 1, 101, 11)]


def test_a_mask_that_a_token_has_overtaken_is_not_sent(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5)
    answer(desk, 5, 0)
    seat(desk, 5, slot=3)
    add(desk, grammar, 7)
    assert rows(desk) == []


def test_before_the_grammar_everything_is_allowed(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, thinks=True)
    seat(desk, 5, slot=3)
    assert calls(desk) == []
    (message,) = desk.take_masks()
    assert message.masks == b"\xff" * 8
    add(desk, grammar, 7, thinks=True, num_thoughts=1)
    assert calls(desk) == []
    assert rows(desk) == [(1, 3, 103, 11)]
    add(desk, grammar, 8, num_thoughts=2)
    assert calls(desk) == [opened([])]
    assert answer(desk, 5, 0)
    assert rows(desk) == [(1, 3, 103, 12)]


THINK, CALL = 20, 21
CHOICE: dict[str, Any] = {"may_reason": True, "reasoning_ids": [THINK], "call_ids": [CALL]}


def test_a_model_that_may_reason_may_begin_with_either(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, thinks=True, **CHOICE)
    assert calls(desk) == [opened([], [CALL, THINK])]
    add(desk, grammar, 7, num_thoughts=1)
    assert calls(desk) == [AdvanceGrammar(sequence_id=5, token_ids=pack_ids([7]))]


def test_reasoning_that_begins_sets_the_grammar_back(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, thinks=True, **CHOICE)
    seat(desk, 5, slot=3)
    calls(desk)
    add(desk, grammar, THINK, thinks=True, num_thoughts=1)
    assert calls(desk) == [CloseGrammar(sequence_id=5)]
    assert rows(desk) == [(1, 3, 103, 11)]
    add(desk, grammar, 8, num_thoughts=2)
    assert calls(desk) == [opened([], [CALL])]


def test_a_call_that_begins_ends_the_grammar(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, call_ids=[CALL])
    seat(desk, 5, slot=3)
    assert calls(desk) == [opened([], [CALL])]
    for token_id, expected in ((CALL, [CloseGrammar(sequence_id=5)]), (7, []), (CALL, [])):
        add(desk, grammar, token_id)
        assert calls(desk) == expected
        assert len(rows(desk)) == 1


def test_a_marker_inside_the_answer_is_none(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, thinks=True, **CHOICE)
    add(desk, grammar, 7, num_thoughts=1)
    calls(desk)
    add(desk, grammar, THINK, num_thoughts=1)
    assert calls(desk) == [AdvanceGrammar(sequence_id=5, token_ids=pack_ids([THINK]))]


def test_a_marker_of_several_tokens_cannot_begin_anything(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, thinks=True, may_reason=True)
    assert calls(desk) == [opened([])]
    add(desk, grammar, 7, num_thoughts=1)
    assert calls(desk) == [AdvanceGrammar(sequence_id=5, token_ids=pack_ids([7]))]


@pytest.mark.parametrize(
    ("token_ids", "thinks", "num_thoughts", "expected"),
    [
        ([7, 8], False, 0, opened([7, 8], [CALL, THINK])),
        ([THINK, 8], True, 2, None),
        ([THINK, 8, 9], False, 2, opened([9], [CALL])),
        ([THINK, 8, CALL, 9], False, 2, None),
        ([CALL, 9], False, 1, None),
    ],
)
def test_what_an_earlier_edge_had_is_placed_alike(
    desk: GrammarDesk, token_ids: list[int], thinks: bool, num_thoughts: int, expected: object
) -> None:
    follow(desk, 5, *token_ids, thinks=thinks, num_thoughts=num_thoughts, **CHOICE)
    assert calls(desk) == ([] if expected is None else [expected])


def test_what_is_over_is_closed(desk: GrammarDesk) -> None:
    follow(desk, 5)
    follow(desk, 6, thinks=True)
    answer(desk, 5, 0)
    seat(desk, 5, slot=3)
    calls(desk)
    desk.close(5)
    desk.close(6)
    desk.close(7)
    assert calls(desk) == [CloseGrammar(sequence_id=5)]
    assert rows(desk) == []
    assert not answer(desk, 5, 0)
    assert desk.num_followed == 0


def test_a_new_process_hears_of_all_tokens(desk: GrammarDesk) -> None:
    grammar = follow(desk, 5, 1, 2, 3, num_thoughts=1)
    follow(desk, 6, thinks=True)
    assert calls(desk) == [opened([2, 3])]
    answer(desk, 5, 2)
    add(desk, grammar, 4, num_thoughts=1)
    lost = desk.lose_process()
    assert not lost.request_ids
    assert not lost.sequence_ids
    assert calls(desk) == [opened([2, 3, 4])]


def test_who_ends_two_processes_fails(desk: GrammarDesk) -> None:
    follow(desk, 5)
    follow(desk, 6)
    assert answer(desk, 6, 0)
    for _ in range(MAX_STRIKES - 1):
        assert not desk.lose_process().sequence_ids
        assert answer(desk, 6, 0)
    assert desk.lose_process().sequence_ids == [5]


def test_the_first_of_the_grammars_that_are_compiled_pays(desk: GrammarDesk) -> None:
    desk.compile(1, SOURCE)
    desk.compile(2, OTHER)
    desk.compile(3, SOURCE)
    calls(desk)
    assert desk.lose_process().request_ids == [1, 3]
    assert calls(desk) == [CompileGrammar(request_id=2, source=OTHER)]
    assert desk.forget(2)
    assert not desk.forget(2)


def test_a_silent_process_is_stuck(desk: GrammarDesk) -> None:
    assert desk.watch(0) is None
    assert not desk.is_stuck(ANSWER_LIMIT_NS)
    follow(desk, 5)
    follow(desk, 6)
    assert desk.watch(100) == 100 + ANSWER_LIMIT_NS
    answer(desk, 5, 0)
    assert desk.watch(200) == 200 + ANSWER_LIMIT_NS
    assert not desk.is_stuck(100 + ANSWER_LIMIT_NS)
    assert desk.is_stuck(200 + ANSWER_LIMIT_NS)
    answer(desk, 6, 0)
    assert desk.watch(300) is None
    assert not desk.is_stuck(300 + ANSWER_LIMIT_NS)
