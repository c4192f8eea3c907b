"""Penalties, token by token, against their formulas."""

import math
from collections.abc import Callable

import pytest
import torch

from pillion.kernels.penalties import IN_PROMPT, MAX_COUNT, apply_penalties, reference
from pillion.kernels.penalties.cases import CASES, Case

CPU = torch.device("cpu")


def formula(
    logit: float, packed: int, repetition: float, frequency: float, presence: float
) -> float:
    count = packed & MAX_COUNT
    if packed != 0:
        logit = logit / repetition if logit > 0 else logit * repetition
    return logit - frequency * count - (presence if count else 0.0)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("apply", [apply_penalties, reference.apply_penalties])
def test_equals_the_formulas(case: Case, apply: Callable[..., None]) -> None:
    logits, counts, slots, repetition, frequency, presence = case.inputs(CPU)
    edited = logits.clone()
    apply(edited, counts, slots, repetition, frequency, presence)
    for row, slot in enumerate(slots.tolist()):
        strengths = float(repetition[row]), float(frequency[row]), float(presence[row])
        for token in range(0, case.vocab_size, max(1, case.vocab_size // 500)):
            wanted = formula(float(logits[row, token]), int(counts[slot, token]), *strengths)
            found = float(edited[row, token])
            assert found == wanted or math.isclose(found, wanted, rel_tol=1e-5, abs_tol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_path_equals_the_specification(case: Case) -> None:
    logits, *rest = case.inputs(CPU)
    expected = logits.clone()
    reference.apply_penalties(expected, *rest)
    apply_penalties(logits, *rest)
    assert torch.equal(logits, expected)


def test_the_prompt_counts_for_repetition_only() -> None:
    logits = torch.ones(1, 4)
    counts = torch.tensor([[0, IN_PROMPT, 2, IN_PROMPT | 1]], dtype=torch.int16)
    one = torch.ones(1)
    apply_penalties(logits, counts, torch.tensor([0]), 2.0 * one, 0.25 * one, 0.5 * one)
    assert logits.tolist() == [[1.0, 0.5, 0.5 - 0.5 - 0.5, 0.5 - 0.25 - 0.5]]


def test_writes_no_other_row_of_the_counts() -> None:
    logits, counts, *rest = CASES[3].inputs(CPU)
    before = counts.clone()
    apply_penalties(logits, counts, *rest)
    assert torch.equal(counts, before)
