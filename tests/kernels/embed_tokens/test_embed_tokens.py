"""Embedded tokens against a loop over them, and the Triton implementation against the reference."""

import dataclasses
from typing import Any

import pytest
import torch

from pillion.kernels.embed_tokens import embed_tokens, reference
from pillion.kernels.embed_tokens.cases import CASES, Case, Inputs
from pillion.kernels.paged_attention import triton_decode

CPU = torch.device("cpu")


def fields(inputs: Inputs) -> list[Any]:
    return [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_a_loop_over_tokens(case: Case) -> None:
    inputs = case.inputs(CPU, torch.float32)
    found = embed_tokens(*fields(inputs))
    assert found.x.shape == (case.num_tokens, case.hidden_size)
    assert found.cos_sin.shape == (case.num_tokens, 2, case.num_angles)
    assert (found.scaled is None) == (not case.has_gain)
    for row, (token, position) in enumerate(
        zip(inputs.input_ids.tolist(), inputs.positions.tolist(), strict=True)
    ):
        embedded = inputs.embedding_table[token].float()
        assert torch.equal(found.x[row], embedded)
        assert torch.equal(found.cos_sin[row], inputs.cos_sin_table[position])
        if found.scaled is not None and inputs.gain is not None:
            assert torch.equal(found.scaled.x[row], embedded * inputs.gain)
            torch.testing.assert_close(
                found.scaled.squares.sum(0)[row], embedded.square().sum(), rtol=1e-5, atol=0
            )


@pytest.mark.parametrize("pdl", [False, True], ids=["alone", "pdl"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_triton(
    device: torch.device, case: Case, pdl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from pillion.kernels.embed_tokens import triton_impl

    if pdl and not triton_decode.has_pdl(device):
        pytest.skip("compute capability 9.0 and up")
    # The interpreter's bfloat16 is not the hardware's.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    inputs = case.inputs(device, dtype)
    poison_new_tensors(monkeypatch)
    got = triton_impl.embed_tokens(*fields(inputs), pdl=pdl)
    want = reference.embed_tokens(*fields(inputs))
    for ours, theirs in zip(got[:2], want[:2], strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert (got[2] is None) == (want[2] is None)
    if got[2] is not None and want[2] is not None:
        assert torch.equal(got[2].x, want[2].x)
        torch.testing.assert_close(got[2].squares, want[2].squares, rtol=1e-5, atol=0)


def poison_new_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves out shows."""
    empty, empty_like = torch.empty, torch.empty_like
    nan = float("nan")
    monkeypatch.setattr(torch, "empty", lambda *a, **named: empty(*a, **named).fill_(nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a: empty_like(*a).fill_(nan))
