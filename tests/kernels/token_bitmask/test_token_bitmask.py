"""Token bitmasks against sets of booleans."""

import math
from collections.abc import Callable

import pytest
import torch

from pillion.kernels.token_bitmask import apply_token_bitmask, reference
from pillion.kernels.token_bitmask.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("apply", [apply_token_bitmask, reference.apply_token_bitmask])
def test_keeps_exactly_the_allowed_logits(
    case: Case, apply: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    logits, bitmask, allowed = case.inputs(torch.device("cpu"))
    expected = torch.where(allowed, logits, -math.inf)
    apply(logits, bitmask)
    assert torch.equal(logits, expected)


def test_the_highest_bit_of_a_word_is_a_token_like_the_others() -> None:
    logits = torch.zeros(1, 64)
    apply_token_bitmask(logits, torch.tensor([[-(2**31), 1]], dtype=torch.int32))
    assert logits.isfinite().nonzero()[:, 1].tolist() == [31, 32]


def test_forbidden_nan_is_gone() -> None:
    logits = torch.tensor([[math.nan, 1.0]])
    apply_token_bitmask(logits, torch.tensor([[2]], dtype=torch.int32))
    assert logits.tolist() == [[-math.inf, 1.0]]
