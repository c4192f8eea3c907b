"""Penalties: what counts, for how much, and for how long."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pillion.kernels.penalties import IN_PROMPT, MAX_COUNT

MakeRig = Callable[..., Any]


def test_presence_and_frequency_see_the_output_alone(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, prompt=[5, 5, 5], presence_penalty=2.0, frequency_penalty=2.0)
    logits = torch.zeros(1, 10)
    logits[0, 5], logits[0, 6] = 5.0, 0.5
    assert [rig.step(logits, [0])[0] for _ in range(3)] == [5, 5, 6]


def test_repetition_sees_the_prompt_too(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, prompt=[5], repetition_penalty=3.0)
    logits = torch.zeros(1, 10)
    logits[0, 5], logits[0, 6] = 2.0, 1.0
    assert rig.step(logits, [0]) == [6]
    assert rig.step(logits, [0]) == [5]


def test_negative_penalties_encourage(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, frequency_penalty=-1.0)
    rig.observe([0], [4])
    logits = torch.zeros(1, 10)
    logits[0, 6] = 0.5
    assert rig.sample(logits, [0]).token_ids.tolist() == [4]


def test_tokens_produced_before_a_preemption_count(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, prompt=[1], produced=[5, 5], frequency_penalty=1.0)
    logits = torch.zeros(1, 10)
    logits[0, 5], logits[0, 6] = 2.1, 0.2
    assert rig.step(logits, [0]) == [6]


def test_memory_is_taken_at_first_use_and_does_not_move(make_rig: MakeRig) -> None:
    rig = make_rig(10)
    penalties = rig.sampler._penalties
    rig.add(0)
    rig.step(torch.zeros(1, 10), [0])
    assert penalties._counts is None
    rig.add(1, presence_penalty=1.0)
    address = penalties._counts.data_ptr()
    for slot in range(8):
        rig.add(slot, repetition_penalty=1.5)
        rig.step(torch.zeros(1, 10), [slot])
    assert penalties._counts.data_ptr() == address
    assert make_rig(10, preallocate=True).sampler._penalties._counts is not None


@pytest.mark.parametrize("in_prompt", [False, True])
def test_counts_stop_at_their_limit(in_prompt: bool, make_rig: MakeRig) -> None:
    rig = make_rig(10)
    rig.add(0, prompt=[5 if in_prompt else 1], frequency_penalty=1e-3, repetition_penalty=1.1)
    counts = rig.sampler._penalties._counts
    counts[0, 5] |= MAX_COUNT - 1
    for _ in range(3):
        rig.observe([0], [5])
    value = int(counts[0, 5])
    assert value & MAX_COUNT == MAX_COUNT
    assert (value & IN_PROMPT != 0) == in_prompt


def test_long_histories_count_as_far_as_the_limit(make_rig: MakeRig) -> None:
    rig = make_rig(4)
    rig.sampler._max_model_len = 10**6
    tokens = np.full(MAX_COUNT + 50, 3, dtype=np.int32)
    tokens[0] = 2
    rig.tokens[0] = tokens.tolist()
    rig.add(0, prompt=[2], produced=[3] * (MAX_COUNT + 50), presence_penalty=0.5)
    counts = rig.sampler._penalties._counts[0]
    assert counts.tolist() == [0, 0, IN_PROMPT, MAX_COUNT]
