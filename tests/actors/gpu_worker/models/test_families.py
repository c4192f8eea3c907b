"""Every family against transformers' own implementation, in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Runner, load, random_tokens, reference_logits

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize(
    "chunk_sizes", [[40], [16, 16, 8], [5, 30, 1, 1, 1, 1, 1], [1] * 40], ids=len
)
def test_logits_equal_transformers(family: tuple[Any, Path], chunk_sizes: list[int]) -> None:
    reference, directory = family
    tokens = random_tokens(40)
    logits = Runner(load(directory)).run(0, tokens, chunk_sizes)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference_logits(reference, tokens), **TOLERANCE)


def test_a_mixed_batch_equals_each_sequence_alone(family: tuple[Any, Path]) -> None:
    reference, directory = family
    runner = Runner(load(directory))
    first, second, third = (random_tokens(30, seed) for seed in range(3))
    runner.step([(0, first[:20]), (1, second[:13])])
    decoded, chunk, whole = runner.step([(0, first[20:21]), (1, second[13:20]), (2, third[:9])])
    for logits, tokens, last in ((decoded, first, 21), (chunk, second, 20), (whole, third, 9)):
        expected = reference_logits(reference, tokens[:last])[last - len(logits) :]
        torch.testing.assert_close(logits, expected, **TOLERANCE)


def test_of_wanted_tokens_alone_the_same_comes(family: tuple[Any, Path]) -> None:
    _, directory = family
    _wanted_are_the_same(Runner(load(directory)), Runner(load(directory)))


def _wanted_are_the_same(runner: Runner, other: Runner, **tolerance: float) -> None:
    first, second = random_tokens(30), random_tokens(20, 1)
    # Of the first step nobody wants anything; the next ones read what it has left in the cache.
    runner.step([(0, first[:20]), (1, second[:9])])
    none = other.step_of([(0, first[:20]), (1, second[:9])], [])
    assert none.shape[0] == 0
    decoded, chunk = runner.step([(0, first[20:21]), (1, second[9:15])])
    got = other.step_of([(0, first[20:21]), (1, second[9:15])], [0, 3, 6])
    torch.testing.assert_close(got, torch.cat([decoded, chunk])[[0, 3, 6]], **tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_wanted_tokens_alone_the_same_comes_on_cuda(
    family: tuple[Any, Path], dtype: str
) -> None:
    _, directory = family
    device = torch.device("cuda", 0)
    runners = [Runner(load(directory, device, dtype=dtype), device) for _ in range(2)]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 0.03, "atol": 0.03}
    _wanted_are_the_same(*runners, **tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cuda_device_gives_the_same(family: tuple[Any, Path], dtype: str) -> None:
    reference, directory = family
    device = torch.device("cuda", 0)
    tokens = random_tokens(40)
    logits = Runner(load(directory, device, dtype=dtype), device).run(0, tokens, [20, 17, 1, 1, 1])
    expected = reference_logits(reference, tokens)
    if dtype == "float32":
        torch.testing.assert_close(logits, expected, **TOLERANCE)
    else:
        assert float((logits - expected).abs().mean() / expected.std()) < 0.05
