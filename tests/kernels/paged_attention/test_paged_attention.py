"""Paged attention against each token's attention over its own sequence, in float64."""

import dataclasses

import pytest
import torch

from pillion.kernels.paged_attention import gather_rows, paged_attention
from pillion.kernels.paged_attention.cases import CASES, TOLERANCES, Case, Inputs

CPU = torch.device("cpu")


def naive(case: Case, inputs: Inputs) -> torch.Tensor:
    """Sequence by sequence, token by token and head by head; rows without KV are NaN."""
    out = torch.full(inputs.q.shape, float("nan"), dtype=torch.float64)
    group_size = case.num_q_heads // case.num_kv_heads
    starts = inputs.rows.query_start_loc.tolist()
    for row, kv in enumerate(inputs.dense_kv):
        keys, values = kv.double().unbind(0)
        num_tokens = starts[row + 1] - starts[row]
        for token in range(num_tokens):
            end = len(keys) - num_tokens + token + 1
            start = 0 if case.sliding_window is None else max(0, end - case.sliding_window)
            if end <= start:
                continue
            for head in range(case.num_q_heads):
                q = inputs.q[starts[row] + token, head].double()
                scores = keys[start:end, head // group_size] @ q * 0.3
                weights = scores.softmax(0)
                out[starts[row] + token, head] = weights @ values[start:end, head // group_size]
    return out


def attend(case: Case, inputs: Inputs) -> torch.Tensor:
    return paged_attention(inputs.q, inputs.layer_kv, inputs.rows, 0.3, case.sliding_window)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_attention_sequence_by_sequence(case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(CPU, dtype)
    out = attend(case, inputs)
    assert out.dtype == dtype
    expected = naive(case, inputs)
    counts = ~expected.isnan()
    torch.testing.assert_close(
        out.double()[counts], expected[counts], rtol=0, atol=TOLERANCES[dtype]
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gather_made_from_another_layer_serves_all(case: Case) -> None:
    inputs = case.inputs(CPU, torch.float32)
    rows = inputs.rows
    pool = inputs.layer_kv._base
    assert pool is not None
    gather = gather_rows(
        pool[:, 0],
        rows.block_table,
        rows.seq_lens,
        rows.num_decode_rows,
        rows.max_decode_seq_len,
    )
    shared = dataclasses.replace(inputs, rows=dataclasses.replace(rows, gather=gather))
    assert torch.equal(attend(case, shared).nan_to_num(), attend(case, inputs).nan_to_num())


@pytest.mark.parametrize("seed", range(3))
def test_a_row_does_not_depend_on_the_others(seed: int) -> None:
    together = Case(decode=(17, 600, 31)).inputs(CPU, torch.float32, seed)
    for row in range(3):
        rows = dataclasses.replace(
            together.rows,
            seq_lens=together.rows.seq_lens[row : row + 1],
            block_table=together.rows.block_table[row : row + 1],
            num_decode_rows=1,
            max_decode_seq_len=int(together.rows.seq_lens[row]),
        )
        alone = paged_attention(together.q[row : row + 1], together.layer_kv, rows, 0.3)
        both = paged_attention(together.q, together.layer_kv, together.rows, 0.3)
        torch.testing.assert_close(alone[0], both[row], rtol=0, atol=1e-6)


def test_a_row_whose_numbers_are_not_finite_spoils_no_other() -> None:
    case = Case(decode=(20, 40, 9))
    inputs = case.inputs(CPU, torch.float32)
    expected = attend(case, inputs)
    inputs.layer_kv[inputs.rows.block_table[1, 0].long(), :, :, 3] = float("nan")
    out = attend(case, inputs)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], expected[[0, 2]])


def test_queries_may_be_more_precise_than_the_cache() -> None:
    case = Case(decode=(20, 40), prefill=((4, 30),))
    inputs = case.inputs(CPU, torch.bfloat16)
    precise = dataclasses.replace(inputs, q=inputs.q.float())
    out = attend(case, precise)
    assert out.dtype == torch.float32
    torch.testing.assert_close(
        out.double(), naive(case, inputs), rtol=0, atol=TOLERANCES[torch.bfloat16]
    )
