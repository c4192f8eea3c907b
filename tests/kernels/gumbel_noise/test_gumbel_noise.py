"""The noise against its specification in plain integers, and its statistics."""

import math

import pytest
import torch

from pillion.kernels.gumbel_noise import gumbel_noise
from pillion.kernels.gumbel_noise.cases import CASES, Case
from pillion.kernels.gumbel_noise.cpu import hash_tokens
from pillion.kernels.gumbel_noise.reference import mix32, row_keys, uniform_bits

CPU = torch.device("cpu")
M32, M64 = 2**32 - 1, 2**64 - 1


def plain_mix32(x: int) -> int:
    x ^= x >> 16
    x = x * 0x85EBCA6B & M32
    x ^= x >> 13
    x = x * 0xC2B2AE35 & M32
    return x ^ x >> 16


def plain_mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def plain_bits(seed: int, position: int, token_id: int) -> int:
    key = plain_mix64((plain_mix64(seed & M64) + position * 0x9E3779B97F4A7C15) & M64)
    x = (plain_mix32(token_id) ^ key & M32) * 0x7FEB352D & M32
    x = (x ^ x >> 15) + (key >> 32) & M32
    x = x * 0x846CA68B & M32
    return (x ^ x >> 16) & 0x7FFFFFFF


def chi_square_limit(degrees: int, sigmas: float = 4.0) -> float:
    """The value that chi-square exceeds about as often as a normal variable exceeds this many sigmas."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + sigmas * spread**0.5) ** 3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_specification_in_plain_integers(case: Case) -> None:
    seeds, positions, ids = case.inputs(CPU)
    noise = gumbel_noise(seeds, positions, ids)
    bits = uniform_bits(seeds, positions, ids)
    assert noise.shape == bits.shape == (case.num_rows, case.num_tokens)
    wide_ids = ids.expand(bits.shape) if case.shared_ids else ids
    for row in range(case.num_rows):
        for column in range(0, case.num_tokens, max(1, case.num_tokens // 50)):
            token_id = int(wide_ids[row, column])
            wanted = plain_bits(int(seeds[row]), int(positions[row]), token_id)
            assert int(bits[row, column]) == wanted
            u = (wanted + 0.5) / 2**31
            exponential = -math.log1p(-u)
            # u is rounded to a float32, which shows near 1.
            tolerance = 2e-6 + 2**-22 / ((1 - u) * exponential) * u
            assert abs(float(noise[row, column]) + math.log(exponential)) < tolerance


@pytest.mark.parametrize("case", [case for case in CASES if case.shared_ids], ids=str)
def test_the_cpu_rounds_give_the_same_bits(case: Case) -> None:
    seeds, positions, ids = case.inputs(CPU)
    low, high = row_keys(seeds, positions)
    bits = torch.full((case.num_rows, case.num_tokens), -1, dtype=torch.int32)
    hash_tokens(mix32(ids), low, high, bits, torch.empty_like(bits))
    assert torch.equal(bits, uniform_bits(seeds, positions, ids))


def test_a_value_depends_on_its_own_row_and_token_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    seeds = torch.randint(-(2**62), 2**62, (37,), generator=generator)
    positions = torch.randint(0, 10_000, (37,), generator=generator)
    full = gumbel_noise(seeds, positions, torch.arange(5003))
    rows = torch.randperm(37, generator=generator)[:11]
    ids = torch.randint(0, 5003, (11, 29), generator=generator)
    assert torch.equal(gumbel_noise(seeds[rows], positions[rows], ids), full[rows].gather(1, ids))


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_follows_the_gumbel_distribution_along_every_axis(axis: str) -> None:
    count = 400_000
    line = torch.arange(count)
    fixed = torch.full((1,), 12345)
    if axis == "tokens":
        noise = gumbel_noise(fixed, fixed, line)[0]
    elif axis == "positions":
        noise = gumbel_noise(fixed.expand(count), line, torch.tensor([77]))[:, 0]
    else:
        noise = gumbel_noise(line, fixed.expand(count), torch.tensor([77]))[:, 0]
    assert noise.isfinite().all()
    assert -2.9 < float(noise.min()) < -2.0
    assert 9.0 < float(noise.max()) < 22.3
    uniform = torch.exp(-torch.exp(-noise.double()))
    num_bins = 1000
    observed = torch.histc(uniform, bins=num_bins, min=0.0, max=1.0)
    expected = count / num_bins
    assert float(((observed - expected) ** 2 / expected).sum()) < chi_square_limit(num_bins - 1)
    centered = uniform - 0.5
    for lag in (1, 2, 64, 1024):
        correlation = float((centered[:-lag] * centered[lag:]).mean() * 12)
        assert abs(correlation) < 4.5 / (count - lag) ** 0.5


@pytest.mark.parametrize("shift", [0, 8, 16, 23])
def test_every_bit_range_is_uniform_over_neighbouring_rows_and_tokens(shift: int) -> None:
    seeds, positions = torch.arange(64).repeat_interleave(64), torch.arange(64).repeat(64)
    bits = uniform_bits(seeds, positions, torch.arange(128))
    observed = torch.bincount(((bits >> shift) & 255).flatten(), minlength=256).double()
    expected = bits.numel() / 256
    assert float(((observed - expected) ** 2 / expected).sum()) < chi_square_limit(255)


@pytest.mark.parametrize("flipped", ["seed", "position", "token"])
def test_one_changed_input_bit_changes_half_of_the_output_bits(flipped: str) -> None:
    generator = torch.Generator().manual_seed(3)
    seeds = torch.randint(0, 2**62, (200,), generator=generator)
    positions = torch.randint(0, 2**17, (200,), generator=generator)
    ids = torch.randint(0, 2**17, (200, 20), generator=generator)
    before = uniform_bits(seeds, positions, ids)
    for bit in range(62 if flipped == "seed" else 17):
        after = uniform_bits(
            seeds ^ (1 << bit) if flipped == "seed" else seeds,
            positions ^ (1 << bit) if flipped == "position" else positions,
            ids ^ (1 << bit) if flipped == "token" else ids,
        )
        changed = ((before ^ after)[:, :, None] >> torch.arange(31)) & 1
        share = changed.double().mean((0, 1))
        assert float(share.min()) > 0.45
        assert float(share.max()) < 0.55


def test_the_best_of_logits_and_noise_is_a_draw_from_their_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, -6.0, -9.0])
    count = 400_000
    noise = gumbel_noise(torch.full((count,), 9), torch.arange(count), torch.arange(7))
    observed = torch.bincount((noise + logits).argmax(-1), minlength=7).double()
    expected = logits.double().softmax(0) * count
    assert float(((observed - expected) ** 2 / expected).sum()) < chi_square_limit(6)


def test_the_tail_that_lets_rare_tokens_win_is_uniform_too() -> None:
    small = []
    for seed in range(200):
        bits = uniform_bits(torch.tensor([seed]), torch.tensor([7]), torch.arange(100_000))
        small.append(bits[bits < 2**15])
    below = torch.cat(small).double()
    wanted = 200 * 100_000 / 2**16
    assert abs(len(below) - wanted) < 4.5 * wanted**0.5
    observed = torch.histc(below, bins=16, min=0, max=2**15)
    expected = len(below) / 16
    assert float(((observed - expected) ** 2 / expected).sum()) < chi_square_limit(15)
