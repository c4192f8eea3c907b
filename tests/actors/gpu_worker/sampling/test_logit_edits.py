"""Logit bias and allowed ids: added, restricted, and gone with their sequence."""

from collections.abc import Callable
from typing import Any

import torch

from pillion.messages.sampling import MAX_LOGIT_BIAS

MakeRig = Callable[..., Any]


def test_a_bias_is_added_to_its_tokens_alone(make_rig: MakeRig) -> None:
    rig = make_rig(50)
    rig.add(0, logit_bias={3: 2.0, 49: 1.5, 0: -100.0})
    rig.add(1)
    rig.add(2, logit_bias={7: -100.0})
    logits = torch.zeros(3, 50)
    logits[:, 0], logits[:, 7] = 1.9, 1.0
    assert rig.sample(logits, [2, 0, 1]).token_ids.tolist() == [0, 3, 0]


def test_a_bias_on_every_entry_that_fits(make_rig: MakeRig) -> None:
    rig = make_rig(MAX_LOGIT_BIAS + 1)
    rig.add(0, logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), -100.0))
    assert rig.sample(torch.zeros(1, MAX_LOGIT_BIAS + 1), [0]).token_ids.tolist() == [
        MAX_LOGIT_BIAS
    ]


def test_allowed_ids_hold_for_their_rows_alone(make_rig: MakeRig) -> None:
    rig = make_rig(70)
    rig.add(0, allowed_token_ids=[31, 32, 69])
    rig.add(1)
    rig.add(2, allowed_token_ids=[0], temperature=1.0)
    logits = torch.zeros(3, 70)
    logits[:, 5], logits[:, 32] = 9.0, 1.0
    assert rig.sample(logits, [2, 1, 0]).token_ids.tolist() == [0, 5, 32]


def test_thousands_of_allowed_ids(make_rig: MakeRig) -> None:
    rig = make_rig(10_000)
    rig.add(0, allowed_token_ids=list(range(1, 10_000, 2)), temperature=1.0)
    rig.add(1, allowed_token_ids=list(range(10_000)))
    logits = torch.arange(10_000.0)[None] / 1000
    for _ in range(20):
        token, best = rig.step(logits.repeat(2, 1), [0, 1])
        assert token % 2 == 1
        assert best == 9999


def test_a_bias_cannot_let_in_what_is_not_allowed(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, allowed_token_ids=[1, 2], logit_bias={5: 100.0, 2: 1.0})
    assert rig.sample(torch.zeros(1, 10), [0]).token_ids.tolist() == [2]
