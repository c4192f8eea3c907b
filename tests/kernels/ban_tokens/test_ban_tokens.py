"""Bans, row by row, against sets."""

import math

import pytest
import torch

from pillion.kernels.ban_tokens import ban_tokens
from pillion.kernels.ban_tokens.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bans_exactly_the_listed_tokens_and_names_the_best_of_them(case: Case) -> None:
    logits, ids, is_banned = case.inputs(torch.device("cpu"))
    edited = logits.clone()
    best_ids, best = ban_tokens(edited, ids, is_banned)
    assert best_ids.shape == best.shape == (case.num_rows,)
    for row in range(case.num_rows):
        banned = {int(t) for t, flag in zip(ids[row], is_banned[row], strict=True) if flag}
        expected = logits[row].clone()
        expected[sorted(banned)] = -math.inf
        assert torch.equal(edited[row], expected)
        if banned:
            wanted = min(banned, key=lambda token: (-float(logits[row, token]), token))
            assert (int(best_ids[row]), float(best[row])) == (wanted, float(logits[row, wanted]))
        else:
            assert float(best[row]) == -math.inf
            assert 0 <= int(best_ids[row]) < case.vocab_size


def test_a_banned_token_that_was_impossible_already_is_no_way_out() -> None:
    logits = torch.tensor([[-math.inf, 2.0]])
    _, best = ban_tokens(logits, torch.tensor([[0]]), torch.tensor([[True]]))
    assert best.tolist() == [-math.inf]
    assert logits.tolist() == [[-math.inf, 2.0]]
