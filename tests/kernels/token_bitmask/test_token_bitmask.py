"""Token bitmasks against sets of booleans."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pillion.kernels.token_bitmask import apply_token_bitmask, reference
from pillion.kernels.token_bitmask.cases import CASES, Case

FIRST = torch.tensor([0])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("apply", [apply_token_bitmask, reference.apply_token_bitmask])
def test_keeps_exactly_the_allowed_logits(case: Case, apply: Callable[..., Any]) -> None:
    inputs = case.inputs(torch.device("cpu"))
    expected = torch.where(inputs.allowed, inputs.logits, -math.inf)
    apply(inputs.logits, inputs.bitmask, inputs.rows, inputs.mask_rows)
    assert torch.equal(inputs.logits, expected)


def test_the_highest_bit_of_a_word_is_a_token_like_the_others() -> None:
    logits = torch.zeros(1, 64)
    bitmask = torch.tensor([[-(2**31), 1]], dtype=torch.int32)
    apply_token_bitmask(logits, bitmask, FIRST, FIRST)
    assert logits.isfinite().nonzero()[:, 1].tolist() == [31, 32]


def test_forbidden_nan_is_gone() -> None:
    logits = torch.tensor([[math.nan, 1.0]])
    apply_token_bitmask(logits, torch.tensor([[2]], dtype=torch.int32), FIRST, FIRST)
    assert logits.tolist() == [[-math.inf, 1.0]]
