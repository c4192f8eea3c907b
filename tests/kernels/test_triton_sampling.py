"""The sampler's Triton kernels against their torch references, as in test_triton.py."""

import math
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from pillion.kernels.edit_logits import ALLOWED_IDS, BAD_WORDS, MIN_TOKENS
from pillion.kernels.edit_logits import cases as edit_cases
from pillion.kernels.edit_logits import reference as edit_reference
from pillion.kernels.edit_logits import triton_impl as edit_triton
from pillion.kernels.gumbel_noise import cases as noise_cases
from pillion.kernels.gumbel_noise import reference as noise_reference
from pillion.kernels.gumbel_noise import triton_impl as noise_triton
from pillion.kernels.row_settings import cases as settings_cases
from pillion.kernels.row_settings import reference as settings_reference
from pillion.kernels.row_settings import triton_impl as settings_triton
from pillion.kernels.sample import cases as sample_cases
from pillion.kernels.sample import reference as sample_reference
from pillion.kernels.sample import triton_impl as sample_triton
from pillion.kernels.sampled_step import cases as step_cases
from pillion.kernels.sampled_step import reference as step_reference
from pillion.kernels.sampled_step import triton_impl as step_triton
from pillion.kernels.sampling_threshold import cases as threshold_cases
from pillion.kernels.sampling_threshold import reference as threshold_reference
from pillion.kernels.sampling_threshold import triton_impl as threshold_triton
from pillion.kernels.token_logprobs import cases as logprob_cases
from pillion.kernels.token_logprobs import reference as logprob_reference
from pillion.kernels.token_logprobs import triton_impl as logprob_triton

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton", "ignore::UserWarning")


@pytest.mark.parametrize("case", noise_cases.CASES, ids=str)
def test_noise(device: torch.device, case: noise_cases.Case) -> None:
    inputs = case.inputs(device)
    assert torch.equal(noise_triton.uniform_bits(*inputs), noise_reference.uniform_bits(*inputs))
    torch.testing.assert_close(
        noise_triton.gumbel_noise(*inputs),
        noise_reference.gumbel_noise(*inputs),
        atol=2e-6,
        rtol=1e-6,
    )


@pytest.mark.parametrize("case", threshold_cases.CASES, ids=str)
def test_thresholds(device: torch.device, case: threshold_cases.Case) -> None:
    inputs = case.inputs(device)
    found = threshold_triton.sampling_threshold(*inputs)
    expected = threshold_reference.sampling_threshold(*inputs)
    if device.type == "cpu":
        assert torch.equal(found, expected)
    else:  # where a mass is within rounding of top-p, both answers are right
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_lists_are_found_where_they_should_be(device: torch.device) -> None:
    """Else every row would pay for the search, and all other tests would pass."""
    scaled, min_p, top_k, top_p = threshold_cases.Case(5003, 4.0).inputs(device)
    found = threshold_triton.select(scaled, torch.ones_like(top_p), min_p, top_k, top_p)
    is_listed = found.num_listed >= 0
    few = (top_k <= 50) | (min_p >= 0.02) | (top_p <= 0.9)
    assert is_listed[few].all()
    for row in torch.nonzero(is_listed)[:, 0].tolist():
        ids = found.ids[row, : found.num_listed[row]].long()
        kept = torch.nonzero(scaled[row] >= found.threshold[row])[:, 0]
        assert set(kept.tolist()) <= set(ids.tolist())
        assert torch.equal(ids.sort().values, ids)


@pytest.mark.parametrize("spread", [1e-4, 30.0])
def test_rows_without_a_list_are_searched(device: torch.device, spread: float) -> None:
    """Top-k beyond the number of groups, of logits close together and far apart, and of two that all tie."""
    generator = torch.Generator().manual_seed(1)
    scaled = torch.randn(4, 3000, generator=generator) * spread
    scaled -= scaled.amax(-1, keepdim=True)
    scaled[3] = -math.inf
    scaled[3, 1500:] = 0.0
    inputs = (
        scaled.to(device),
        torch.tensor([0.0, 0.0, 1e-9, 0.0], device=device),
        torch.tensor([2200, 2999, 2500, 2000], device=device),
        torch.tensor([1.0, 0.7, 0.9999, 1.0], device=device),
    )
    found = threshold_triton.sampling_threshold(*inputs)
    expected = threshold_reference.sampling_threshold(*inputs)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("case", sample_cases.CASES, ids=str)
def test_samples(device: torch.device, case: sample_cases.Case) -> None:
    inputs = case.inputs(device)
    logits = inputs.pop("logits")
    kept = logits.clone()
    token_ids, best = sample_triton.sample(logits, **inputs)
    assert torch.equal(logits, kept)
    expected_ids, expected_best = sample_reference.sample(kept, **inputs)
    assert token_ids.tolist() == expected_ids.tolist()
    assert torch.equal(best, expected_best)


def test_samples_of_rows_that_are_masked_or_broken(device: torch.device) -> None:
    inputs = sample_cases.Case(5003, 3.0, seed=4).inputs(device)
    expected, _ = sample_reference.sample(**{name: each.clone() for name, each in inputs.items()})
    for row, bad in ((1, math.nan), (2, math.inf), (3, -math.inf)):
        inputs["logits"][row] = bad
    inputs["temperature"][4] = -1.0
    token_ids, best = sample_triton.sample(**inputs)
    assert torch.equal(token_ids[5:], expected[5:])
    assert ((token_ids >= 0) & (token_ids < 5003)).all()
    assert not best[1:4].isfinite().any()
    assert token_ids[4] == 0


def test_without_filters_nothing_is_looked_for(device: torch.device) -> None:
    inputs: dict[str, Any] = sample_cases.Case(1003, 2.0).inputs(device)
    inputs["min_p"].zero_()
    inputs["top_k"].fill_(1003)
    inputs["top_p"].fill_(1.0)
    expected, _ = sample_triton.sample(**inputs)
    found, _ = sample_triton.sample(**inputs, any_filter=False)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("case", logprob_cases.CASES, ids=str)
def test_logprobs(device: torch.device, case: logprob_cases.Case) -> None:
    logits, token_ids = case.inputs(device)
    ids, logprobs, ranks = logprob_triton.token_logprobs(logits, token_ids, case.num_top)
    _, expected, expected_ranks = logprob_reference.token_logprobs(logits, token_ids, case.num_top)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(ranks, expected_ranks)
    assert torch.equal(ids[:, 0].long(), token_ids)
    for row in range(case.num_rows):
        top = ids[row, 1:].long()
        best = logits[row].sort(descending=True).values[: case.num_top]
        assert len(set(top.tolist())) == case.num_top
        assert torch.equal(logits[row, top], best)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_logprobs_of_a_row_that_is_no_distribution(device: torch.device, poison: float) -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(device)
    token_ids = torch.tensor([4, 5, 6], device=device)
    expected = logprob_triton.token_logprobs(logits, token_ids, 3)
    logits[1, 7 if poison > 0 or poison != poison else slice(None)] = poison
    ids, logprobs, ranks = logprob_triton.token_logprobs(logits, token_ids, 3)
    assert (logprobs[1] == logprob_reference.MIN_LOGPROB).all()
    assert len(set(ids[1, 1:].tolist())) == 3
    for before, after in zip(expected, (ids, logprobs, ranks), strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_logprobs_of_some_rows_in_columns(device: torch.device) -> None:
    """What a captured step wants: a number of best tokens per row, some rows left out, best by best."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 3001, generator=generator).to(device)
    token_ids = torch.tensor([7, 8, 9, 10], dtype=torch.int32, device=device)
    wanted = torch.tensor([1.0, -1.0, 1.0, 1.0], device=device)
    num_top = torch.tensor([3, 9, 0, 6], dtype=torch.int32, device=device)
    ids = torch.full((7, 4), -7, dtype=torch.int32, device=device)
    logprobs = torch.full((7, 4), math.nan, device=device)
    ranks = torch.full((4,), -7, dtype=torch.int32, device=device)
    logprob_triton.write_logprobs(logits, wanted, num_top, token_ids, ids.T, logprobs.T, ranks)
    assert (ids[:, 1] == -7).all()
    assert logprobs[:, 1].isnan().all()
    for row, count in ((0, 3), (2, 0), (3, 6)):
        alone = logprob_triton.token_logprobs(
            logits[row : row + 1], token_ids[row : row + 1], count
        )
        assert torch.equal(ids[: 1 + count, row], alone[0][0])
        assert torch.equal(logprobs[: 1 + count, row], alone[1][0])
        assert ranks[row] == alone[2][0]
        assert (ids[1 + count :, row] == -1).all()


@pytest.mark.parametrize("case", settings_cases.CASES, ids=str)
def test_row_settings(device: torch.device, case: settings_cases.Case) -> None:
    inputs = case.inputs(device)
    found = settings_triton.row_settings(*inputs)
    for got, want in zip(found, settings_reference.row_settings(*inputs), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("case", edit_cases.CASES, ids=str)
def test_edit_logits(device: torch.device, case: edit_cases.Case) -> None:
    got, want = case.inputs(device), case.inputs(device)
    found, expected = edit_triton.edit_logits(*got), edit_reference.edit_logits(*want)
    assert torch.equal(got.logits, want.logits)
    assert torch.equal(got.raw.isnan(), want.raw.isnan())
    assert torch.equal(got.raw.nan_to_num(), want.raw.nan_to_num())
    is_edited = got.features != 0
    has_bans = (got.features & (MIN_TOKENS | BAD_WORDS)) != 0
    assert torch.equal(found.best_before.amax(-1)[is_edited], expected.best_before[is_edited, 0])
    banned, piece = found.banned.max(-1)
    assert torch.equal(banned[has_bans], expected.banned[has_bans, 0])
    has_best = has_bans & (banned > -math.inf)
    ids = found.banned_ids.gather(-1, piece[:, None])
    assert torch.equal(ids[has_best], expected.banned_ids[has_best])


def test_broken_logits_are_seen_before_the_edits(device: torch.device) -> None:
    inputs = edit_cases.CASES[2].inputs(device)
    inputs.logits[1:, 500] = math.nan
    inputs.features[:] = ALLOWED_IDS
    inputs.tables.allowed_ids.fill_(0)
    found = edit_triton.edit_logits(*inputs)
    assert found.best_before[0].isfinite().all()
    assert found.best_before[1:].amax(-1).isnan().all()


@pytest.mark.parametrize("case", step_cases.CASES, ids=str)
def test_sampled_step(device: torch.device, case: step_cases.Case) -> None:
    outputs = []
    for step in (step_triton.sampled_step, step_reference.sampled_step):
        inputs = case.inputs(device)
        step(*inputs)
        slots = inputs.tables
        tables = [slots.token_table, slots.num_computed, slots.num_known, slots.finished]
        if inputs.edits is not None:
            tables += [inputs.edits.token_counts, inputs.edits.recent]
        # The last slot is scratch.
        outputs.append((inputs.columns, inputs.token_ids, *(table[:-1] for table in tables)))
    codes = set(outputs[0][0][2].tolist())
    assert codes == {0, 1, 2, 3} or case.rows.num_rows < 2
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
