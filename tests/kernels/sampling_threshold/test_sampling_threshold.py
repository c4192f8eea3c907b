"""The three filters against their definition in float64, and the CPU path against the specification."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pillion.kernels.sampling_threshold import cpu, reference, sampling_threshold
from pillion.kernels.sampling_threshold.cases import CASES, Case

CPU = torch.device("cpu")


def definition(z: np.ndarray, min_p: float, top_k: int, top_p: float) -> float:
    """The threshold of one row, from the definition: groups of equal logits enter together."""
    z = z.astype(np.float64)
    floor = math.log(min_p) if min_p > 0 else -math.inf
    if top_k < len(z):
        floor = max(floor, float(np.sort(z)[-top_k]))
    if top_p >= 1.0:
        return floor
    values, counts = np.unique(z[z >= floor], return_counts=True)
    mass_from = np.cumsum((np.exp(values) * counts)[::-1])[::-1]
    return float(values[mass_from >= top_p * mass_from[0]].max())


def check(z: torch.Tensor, min_p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> None:
    threshold = sampling_threshold(z, min_p, top_k, top_p)
    assert threshold.shape == (len(z),)
    assert (threshold <= 0).all()
    for row in range(len(z)):
        values = z[row].numpy()
        others, nucleus = (float(min_p[row]), int(top_k[row])), float(top_p[row])
        low, high = nucleus, nucleus
        if nucleus < 1.0:
            # Weights are float32: where a mass is within their rounding of top-p, both answers are right.
            low, high = max(nucleus - 3e-7, 1e-12), min(nucleus + 3e-7, 1.0 - 1e-12)
        assert float(threshold[row]) >= definition(values, *others, high) - 1e-6
        assert float(threshold[row]) <= definition(values, *others, low) + 1e-6


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_definition(case: Case) -> None:
    check(*case.inputs(CPU))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_path_equals_the_specification(case: Case) -> None:
    inputs = case.inputs(CPU)
    expected = reference.sampling_threshold(*inputs)
    assert torch.equal(cpu.sampling_threshold(*inputs), expected)


@pytest.mark.parametrize("first_candidates", [1, 2, 5, 30])
def test_rows_that_few_values_do_not_decide_are_looked_at_again(
    first_candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "FIRST_CANDIDATES", first_candidates)
    monkeypatch.setattr(cpu, "_GROWTH", 3)
    for case in (Case(200, 2.0), Case(200, 0.0), Case(200, 1.0, levels=1), Case(97, 30.0)):
        inputs = case.inputs(CPU)
        expected = reference.sampling_threshold(*inputs)
        assert torch.equal(cpu.sampling_threshold(*inputs), expected)


def test_top_k_keeps_exactly_k_without_ties_and_the_tied_ones_with() -> None:
    z = torch.tensor([[0.0, -1.0, -2.0, -3.0], [0.0, -1.0, -1.0, -1.0]])
    off = torch.zeros(2), torch.ones(2)
    for k, kept in ((1, [1, 1]), (2, [2, 4]), (3, [3, 4]), (4, [4, 4]), (2**31 - 1, [4, 4])):
        threshold = sampling_threshold(z, off[0], torch.tensor([k, k]), off[1])
        assert (z >= threshold[:, None]).sum(-1).tolist() == kept


def test_top_p_is_taken_of_the_mass_that_the_other_filters_left() -> None:
    z = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]])) - math.log(0.4)
    top_p = torch.tensor([0.55])
    alone = sampling_threshold(z, torch.zeros(1), torch.tensor([4]), top_p)
    assert int((z >= alone).sum()) == 2
    # 0.4 / 0.7 > 0.55: of the best two, the first is enough.
    behind_top_k = sampling_threshold(z, torch.zeros(1), torch.tensor([2]), top_p)
    assert int((z >= behind_top_k).sum()) == 1
    behind_min_p = sampling_threshold(z, torch.tensor([0.7]), torch.tensor([4]), top_p)
    assert int((z >= behind_min_p).sum()) == 1


def test_the_best_token_is_always_kept() -> None:
    z = torch.tensor([[0.0, -5.0, -9.0]]).repeat(4, 1)
    threshold = sampling_threshold(
        z,
        torch.tensor([1.0, 0.0, 0.0, 1.0]),
        torch.tensor([3, 1, 3, 1]),
        torch.tensor([1.0, 1.0, 1e-45, 1e-45]),
    )
    assert ((z >= threshold[:, None]).sum(-1) == 1).all()


def test_impossible_tokens_stay_out_and_make_no_nan() -> None:
    z = torch.tensor([[0.0, -math.inf, -1.0, -math.inf]]).repeat(3, 1)
    threshold = sampling_threshold(
        z, torch.tensor([0.0, 0.5, 0.0]), torch.tensor([3, 4, 4]), torch.tensor([1.0, 1.0, 0.999])
    )
    assert not threshold.isnan().any()
    assert threshold.tolist()[1:] == [pytest.approx(math.log(0.5)), -1.0]


def test_a_row_of_nan_disturbs_no_other() -> None:
    z, min_p, top_k, top_p = Case(3000, 2.0).inputs(CPU)
    expected = sampling_threshold(z, min_p, top_k, top_p)
    z[3] = math.nan
    threshold = sampling_threshold(z, min_p, top_k, top_p)
    others = torch.arange(len(z)) != 3
    assert torch.equal(threshold[others], expected[others])


def test_no_rows() -> None:
    nothing = torch.zeros(0)
    top_k = torch.zeros(0, dtype=torch.int64)
    assert sampling_threshold(torch.zeros(0, 3000), nothing, top_k, nothing).shape == (0,)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_rows_equal_the_definition(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(1, 40))
    steps = data.draw(st.lists(st.integers(0, 60), min_size=vocab_size, max_size=vocab_size))
    z = torch.tensor([steps], dtype=torch.float32).mul_(-data.draw(st.sampled_from([0.1, 0.5])))
    z -= z.amax()
    check(
        z,
        torch.tensor([data.draw(st.sampled_from([0.0, 1e-9, 0.03, 0.3, 1.0]))]),
        torch.tensor([data.draw(st.integers(1, vocab_size + 3))]),
        torch.tensor([data.draw(st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]))]),
    )
