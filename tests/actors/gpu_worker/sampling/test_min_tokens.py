"""min_tokens: the ids that end a sequence wait their turn."""

from collections.abc import Callable
from typing import Any

import torch

MakeRig = Callable[..., Any]


def test_no_stop_id_before_that_many_output_tokens(make_rig: MakeRig) -> None:
    rig = make_rig(6)
    rig.add(0, prompt=[1, 2, 3], min_tokens=3, stop_token_ids=[4, 5])
    logits = torch.tensor([[0.0, 0.0, 1.0, 0.0, 3.0, 2.0]])
    assert [rig.step(logits, [0])[0] for _ in range(4)] == [2, 2, 2, 4]


def test_tokens_produced_before_a_preemption_count(make_rig: MakeRig) -> None:
    rig = make_rig(6)
    rig.add(0, prompt=[1], produced=[2, 2], min_tokens=3, stop_token_ids=[0])
    logits = torch.tensor([[3.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    assert [rig.step(logits, [0])[0] for _ in range(2)] == [2, 0]


def test_rows_at_different_points_and_with_different_ids(make_rig: MakeRig) -> None:
    rig = make_rig(6)
    rig.add(0, min_tokens=1, stop_token_ids=[5])
    rig.add(1, min_tokens=5, stop_token_ids=[5, 4, 3])
    rig.add(2, min_tokens=0, stop_token_ids=[5])
    rig.add(3, min_tokens=9, stop_token_ids=[])
    rig.add(4, min_tokens=1, stop_token_ids=[0], produced=[2])
    logits = torch.arange(6.0).repeat(5, 1)
    assert rig.step(logits, [0, 1, 2, 3, 4]) == [4, 2, 5, 5, 5]
    assert rig.step(logits, [0, 1, 2, 3, 4]) == [5, 2, 5, 5, 5]


def test_a_sequence_that_may_only_stop_stops(make_rig: MakeRig) -> None:
    rig = make_rig(6)
    rig.add(0, min_tokens=3, stop_token_ids=[4, 5], allowed_token_ids=[5, 4])
    assert rig.sample(torch.zeros(1, 6), [0]).token_ids.tolist() == [4]
