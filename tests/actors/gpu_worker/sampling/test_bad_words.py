"""Bad words: the last token is out of reach where the others stand before it, and only there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pillion.messages.sampling import MAX_BAD_WORD_TOKENS

MakeRig = Callable[..., Any]


def favoring(*tokens: int) -> torch.Tensor:
    """Logits of 10 tokens in this order of preference."""
    logits = torch.full((1, 10), -5.0)
    for rank, token in enumerate(tokens):
        logits[0, token] = -float(rank)
    return logits


def test_single_tokens_never_come(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, bad_words=[[4], [5]])
    assert [rig.step(favoring(4, 5, 6), [0])[0] for _ in range(3)] == [6, 6, 6]


def test_the_last_token_is_banned_only_behind_the_others(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, bad_words=[[1, 2, 3], [9, 3]])
    tokens = []
    for wanted in (3, 1, 2, 3, 2, 3, 1, 1, 2, 3, 9, 3):
        tokens += rig.step(favoring(wanted, 7), [0])
    assert tokens == [3, 1, 2, 7, 2, 3, 1, 1, 2, 7, 9, 7]


def test_the_prompt_is_no_part_of_a_bad_word(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, prompt=[1, 2], bad_words=[[1, 2, 3]])
    assert rig.step(favoring(3, 7), [0]) == [3]


def test_tokens_produced_before_a_preemption_are(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, prompt=[4], produced=[5, 1, 2], bad_words=[[1, 2, 3]])
    assert rig.step(favoring(3, 7), [0]) == [7]


@pytest.mark.parametrize("length", [2, MAX_BAD_WORD_TOKENS])
def test_words_of_every_length(length: int, make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, bad_words=[[1] * length, [8]])
    tokens = [rig.step(favoring(1, 7), [0])[0] for _ in range(2 * length)]
    assert tokens == ([1] * (length - 1) + [7]) * 2


def test_rows_with_and_without_bad_words_in_one_batch(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0)
    rig.add(1, bad_words=[[0]])
    rig.add(2, bad_words=[[5, 6], [3], [4]])
    rig.observe([0, 2], [5, 5])
    logits = favoring(6, 3, 0, 7).repeat(3, 1)
    assert rig.sample(logits, [2, 1, 0]).token_ids.tolist() == [0, 6, 6]


def test_when_every_token_is_banned_the_best_comes(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, bad_words=[[token] for token in range(10)], temperature=1.0)
    rig.add(1, bad_words=[[4], [5]], allowed_token_ids=[5, 4], temperature=1.0)
    logits = favoring(8, 5, 4).repeat(2, 1)
    assert rig.sample(logits, [0, 1]).token_ids.tolist() == [8, 5]
