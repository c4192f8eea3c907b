"""Log-probabilities: of the raw logits, for the rows that ask, as many as they ask."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pillion.actors.gpu_worker.sampling.sampler import prompt_logprobs

MakeRig = Callable[..., Any]


def test_are_those_of_the_logits_before_any_edit(make_rig: MakeRig) -> None:
    rig = make_rig(20)
    rig.add(
        0,
        temperature=0.3,
        top_k=1,
        logit_bias={3: 100.0},
        repetition_penalty=2.0,
        bad_words=[[5]],
        logprobs=4,
    )
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(0))
    sampled = rig.sample(logits, [0])
    columns = sampled.logprobs
    raw = logits.double().log_softmax(-1)[0]
    assert sampled.token_ids.tolist() == [3]
    assert columns.token_ids[0, 0] == 3
    assert columns.token_ids[0, 1:].tolist() == raw.argsort(descending=True)[:4].tolist()
    wanted = raw[columns.token_ids[0].long()]
    torch.testing.assert_close(columns.logprobs[0].double(), wanted, atol=1e-6, rtol=1e-6)
    assert columns.ranks.tolist() == [1 + int((raw > raw[3]).sum())]


def test_only_rows_that_ask_and_only_as_many_as_they_ask(make_rig: MakeRig) -> None:
    rig = make_rig(20)
    for slot, wanted in enumerate([None, 3, None, 0, 5]):
        rig.add(slot, logprobs=wanted)
    logits = torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
    sampled = rig.sample(logits, [4, 0, 3, 2, 1])
    columns = sampled.logprobs
    assert columns.rows_np.tolist() == [0, 2, 4]
    assert columns.token_ids.shape == columns.logprobs.shape == (3, 6)
    assert (columns.token_ids >= 0).sum(-1).tolist() == [6, 1, 4]
    assert torch.equal(columns.token_ids[:, 0], sampled.token_ids[[0, 2, 4]])
    assert columns.ranks.tolist() == [1, 1, 1]
    assert columns.logprobs.isfinite().all()


def test_nobody_asks(make_rig: MakeRig) -> None:
    rig = make_rig(20)
    rig.add(0)
    assert rig.sample(torch.zeros(1, 20), [0]).logprobs is None


def test_more_than_the_vocabulary_holds(make_rig: MakeRig) -> None:
    rig = make_rig(3)
    rig.add(0, logprobs=5)
    columns = rig.sample(torch.tensor([[0.0, 2.0, 1.0]]), [0]).logprobs
    assert columns.token_ids.tolist() == [[1, 1, 2, 0, -1, -1]]
    ids, logprobs, ranks = prompt_logprobs(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([2]), 5)
    assert ids.tolist() == [[2, 1, 2, 0, -1, -1]]
    assert logprobs.shape == (1, 6)
    assert ranks.tolist() == [2]


def test_an_impossible_token_has_a_logprob_that_json_can_hold(make_rig: MakeRig) -> None:
    rig = make_rig(3)
    rig.add(0, logprobs=3, logit_bias={})
    columns = rig.sample(torch.tensor([[0.0, -torch.inf, -1e6]]), [0]).logprobs
    values = json.loads(json.dumps(columns.logprobs[0].tolist(), allow_nan=False))
    assert values == [0.0, 0.0, -9999.0, -9999.0]


@pytest.mark.parametrize("num_top", [0, 1, 7])
@pytest.mark.parametrize("piece", [1, 4, 13])
def test_prompt_logprobs_in_pieces_equal_those_at_once(num_top: int, piece: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(13, 500, generator=generator)
    token_ids = torch.randint(0, 500, (13,), generator=generator)
    whole = prompt_logprobs(logits, token_ids, num_top)
    pieces = [
        prompt_logprobs(logits[start : start + piece], token_ids[start : start + piece], num_top)
        for start in range(0, 13, piece)
    ]
    for expected, parts in zip(whole, zip(*pieces, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(parts), expected)
    torch.testing.assert_close(
        whole[1][:, 0], logits.log_softmax(-1).gather(-1, token_ids[:, None])[:, 0]
    )
