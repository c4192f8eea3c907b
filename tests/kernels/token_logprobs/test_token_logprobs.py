"""Log-probabilities against log_softmax in float64."""

import math

import pytest
import torch

from pillion.kernels.token_logprobs import MIN_LOGPROB, token_logprobs
from pillion.kernels.token_logprobs.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_log_softmax(case: Case) -> None:
    logits, token_ids = case.inputs(torch.device("cpu"))
    before = logits.clone()
    ids, logprobs, ranks = token_logprobs(logits, token_ids, case.num_top)
    assert torch.equal(logits, before)
    assert ids.shape == logprobs.shape == (case.num_rows, 1 + case.num_top)
    assert (ids.dtype, logprobs.dtype, ranks.dtype) == (torch.int32, torch.float32, torch.int32)
    assert logprobs.isfinite().all()
    wanted = before.double().log_softmax(-1).clamp_min(MIN_LOGPROB)
    torch.testing.assert_close(
        logprobs.double(), wanted.gather(-1, ids.long()), atol=2e-5, rtol=1e-5
    )
    assert torch.equal(ids[:, 0], token_ids.int())
    for row in range(case.num_rows):
        own = before[row, token_ids[row]]
        assert int(ranks[row]) == 1 + int((before[row] > own).sum())
        top = ids[row, 1:].tolist()
        assert len(set(top)) == case.num_top
        best = before[row].sort(descending=True).values[: case.num_top]
        assert torch.equal(before[row, top], best)


def test_an_impossible_token_has_the_least_logprob_and_the_last_rank() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    ids, logprobs, ranks = token_logprobs(logits, torch.tensor([1]), 1)
    assert (ids[0, 0], logprobs[0, 0], ranks[0]) == (1, MIN_LOGPROB, 3)
    assert logprobs[0, 1] == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_logits_that_are_no_numbers_give_finite_logprobs_in_their_row_alone(poison: float) -> None:
    logits = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    token_ids = torch.tensor([4, 5, 6])
    expected = token_logprobs(logits, token_ids, 3)
    logits[1, 7] = poison
    found = token_logprobs(logits, token_ids, 3)
    assert found[1].isfinite().all()
    for before, after in zip(expected, found, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
