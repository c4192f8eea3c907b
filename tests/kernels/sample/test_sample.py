"""Sampling: equal to its specification, frequencies, and no mass outside the allowed set."""

import math

import pytest
import torch

from pillion.kernels.gumbel_noise import gumbel_noise
from pillion.kernels.sample import reference, sample
from pillion.kernels.sample.cases import CASES, ROWS, Case

CPU = torch.device("cpu")


def chi_square_limit(degrees: int) -> float:
    """Exceeded as often as a normal variable exceeds 4 sigmas."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 4 * spread**0.5) ** 3)


def one_row_many_times(
    logits: list[float],
    count: int,
    *,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 11,
) -> torch.Tensor:
    """How often each token was drawn at `count` consecutive positions, [vocab] float64."""
    vocab_size = len(logits)
    token_ids, _ = sample(
        torch.tensor(logits).repeat(count, 1),
        temperature=torch.full((count,), temperature),
        min_p=torch.full((count,), min_p),
        top_k=torch.full((count,), top_k or vocab_size),
        top_p=torch.full((count,), top_p),
        seeds=torch.full((count,), seed),
        positions=torch.arange(count),
    )
    return torch.bincount(token_ids, minlength=vocab_size).double()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_path_equals_the_specification(case: Case) -> None:
    inputs = case.inputs(CPU)
    token_ids, best = sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    expected_ids, expected_best = reference.sample(**inputs)
    assert token_ids.dtype == torch.int32
    assert token_ids.tolist() == expected_ids.tolist()
    assert torch.equal(best, expected_best)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_formula_row_by_row(case: Case) -> None:
    inputs = case.inputs(CPU)
    token_ids, _ = sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    undecided = 0
    for row, (temperature, min_p, top_k, top_p) in enumerate(ROWS):
        logits = inputs["logits"][row].double()
        if temperature < 1e-5:
            assert int(token_ids[row]) == int(logits.argmax())
            continue
        z = (logits - logits.max()) / float(inputs["temperature"][row])
        order = z.argsort(descending=True, stable=True)
        z_sorted = z[order]
        keep = torch.ones(len(z), dtype=torch.bool)
        if min_p > 0:
            keep &= z_sorted >= math.log(min_p) - 1e-6
        if 0 < top_k < len(z):
            keep &= z_sorted >= z_sorted[top_k - 1] - 1e-6
        mass = torch.where(keep, z_sorted.exp(), 0.0)
        if top_p < 1.0:
            inside = mass.cumsum(0) - mass < top_p * mass.sum() * (1 + 1e-6)
            keep &= z_sorted >= z_sorted[inside.nonzero().max()] - 1e-6
        allowed = order[keep]
        assert int(token_ids[row]) in allowed.tolist()
        noise = gumbel_noise(inputs["seeds"][row, None], inputs["positions"][row, None], allowed)
        score = noise[0].double() + z[allowed]
        if len(score) > 1 and float(score.topk(2).values.diff().abs()) < 1e-3:
            undecided += 1
            continue
        assert int(token_ids[row]) == int(allowed[score.argmax()])
    assert undecided <= 4


def test_a_row_gets_the_same_token_alone_in_any_order_and_in_any_batch() -> None:
    inputs = Case(5003, 3.0, seed=9).inputs(CPU)
    together, _ = sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    order = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(0))
    shuffled, _ = sample(**{name: tensor[order] for name, tensor in inputs.items()})
    assert torch.equal(shuffled, together[order])
    for row in range(len(ROWS)):
        alone, _ = sample(**{name: tensor[row : row + 1] for name, tensor in inputs.items()})
        assert int(alone[0]) == int(together[row])


def test_equal_logits_are_decided_by_the_lower_id_when_greedy() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    inputs = {name: tensor[:1] for name, tensor in Case(4, 1.0).inputs(CPU).items()}
    token_ids, best = sample(**(inputs | {"logits": logits}))
    assert (int(token_ids[0]), float(best[0])) == (1, 5.0)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_frequencies_equal_the_softmax(temperature: float) -> None:
    logits = [2.0, -1.0, 0.5, 1.0, -2.0, 3.0, 0.0]
    count = 200_000
    observed = one_row_many_times(logits, count, temperature=temperature)
    expected = (torch.tensor(logits).double() / temperature).softmax(0) * count
    assert float(((observed - expected) ** 2 / expected).sum()) < chi_square_limit(6)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 3}, {0, 3, 5}),
        ({"min_p": 0.1}, {0, 3, 5}),
        ({"top_p": 0.6}, {5}),
        ({"top_p": 0.7}, {0, 5}),
        ({"top_k": 3, "top_p": 0.95}, {0, 3, 5}),
        ({"top_k": 3, "top_p": 0.9}, {0, 5}),
        ({"min_p": 0.3, "top_k": 5, "top_p": 0.99}, {0, 5}),
    ],
    ids=str,
)
def test_no_mass_outside_the_kept_set_and_the_right_share_inside(
    filters: dict[str, float], kept: set[int]
) -> None:
    # Probabilities about 0.24, 0.01, 0.05, 0.09, 0.004, 0.65, 0.03 (before filters).
    logits = [2.0, -1.0, 0.5, 1.0, -2.0, 3.0, 0.0]
    count = 100_000
    observed = one_row_many_times(logits, count, **filters)  # type: ignore[arg-type]
    assert set(observed.nonzero()[:, 0].tolist()) == kept
    members = sorted(kept)
    expected = torch.tensor(logits).double()[members].softmax(0) * count
    if len(members) > 1:
        statistic = float(((observed[members] - expected) ** 2 / expected).sum())
        assert statistic < chi_square_limit(len(members) - 1)


def test_a_wide_flat_distribution_is_sampled_evenly() -> None:
    """The bound that spares most tokens their noise must spare none unfairly."""
    vocab_size, count = 500, 30_000
    observed = one_row_many_times([0.0] * vocab_size, count)
    expected = count / vocab_size
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(vocab_size - 1)


def test_other_seeds_and_positions_give_other_tokens() -> None:
    count = 2000
    logits = [0.0] * 1000
    first = one_row_many_times(logits, count, seed=1)
    assert not torch.equal(first, one_row_many_times(logits, count, seed=2))
    assert torch.equal(first, one_row_many_times(logits, count, seed=1))
    assert int((first > 0).sum()) > 700


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_stays_in_range_and_disturbs_no_other(bad: float) -> None:
    inputs = Case(3001, 3.0, seed=4).inputs(CPU)
    expected, _ = sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    for row in range(len(ROWS)):
        poisoned = {name: tensor.clone() for name, tensor in inputs.items()}
        poisoned["logits"][row] = bad
        token_ids, best = sample(**poisoned)
        others = torch.arange(len(ROWS)) != row
        assert torch.equal(token_ids[others], expected[others])
        assert 0 <= int(token_ids[row]) < 3001
        assert not math.isfinite(float(best[row]))


@pytest.mark.parametrize("temperature", [1e-45, 1e-6, 1e-5, 1.1e-5, 100.0])
@pytest.mark.parametrize("top_p", [1e-45, 0.5, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 1e-45, 1.0])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_extreme_settings_give_a_possible_token(
    temperature: float, top_p: float, min_p: float, scale: float
) -> None:
    logits = torch.tensor([1.0, -1.0, 3.0, -math.inf, 0.0]) * scale
    count = 50
    token_ids, best = sample(
        logits.repeat(count, 1),
        temperature=torch.full((count,), temperature),
        min_p=torch.full((count,), min_p),
        top_k=torch.full((count,), 5),
        top_p=torch.full((count,), top_p),
        seeds=torch.arange(count),
        positions=torch.arange(count),
    )
    assert not (token_ids == 3).any()
    assert torch.equal(best, logits.amax().expand(count))
    if temperature < 1e-5 or (scale == 1.0 and (min_p == 1.0 or top_p == 1e-45)):
        assert (token_ids == 2).all()


def test_what_the_host_knows_saves_work_and_changes_nothing() -> None:
    inputs = Case(1003, 2.0).inputs(CPU)
    inputs["temperature"].zero_()
    plain, _ = sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    greedy, _ = sample(**inputs, all_greedy=True)
    assert torch.equal(plain, greedy)
    inputs = Case(1003, 2.0).inputs(CPU)
    inputs |= {
        "min_p": torch.zeros(len(ROWS)),
        "top_k": torch.full((len(ROWS),), 1003),
        "top_p": torch.ones(len(ROWS)),
    }
    with_filters, _ = reference.sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    without, _ = reference.sample(**inputs, any_filter=False)
    assert torch.equal(with_filters, without)


def test_no_rows_and_padded_rows() -> None:
    inputs = {name: tensor[:0] for name, tensor in Case(50, 1.0).inputs(CPU).items()}
    token_ids, best = sample(**inputs)
    assert (token_ids.shape, token_ids.dtype, best.shape) == ((0,), torch.int32, (0,))
    inputs = Case(50, 2.0).inputs(CPU)
    expected, _ = sample(**{name: tensor.clone() for name, tensor in inputs.items()})
    wide = torch.full((len(ROWS), 64), math.nan)
    wide[:, :50] = inputs["logits"]
    token_ids, _ = sample(**(inputs | {"logits": wide[:, :50]}))
    assert torch.equal(token_ids, expected)
