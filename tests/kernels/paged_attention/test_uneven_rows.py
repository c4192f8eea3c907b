"""Which rows of a decode step are split, and into how many parts."""

import pytest
import torch

pytest.importorskip("triton")

from pillion.kernels.paged_attention import reference, triton_decode
from pillion.kernels.paged_attention.cases import Case
from pillion.kernels.paged_attention.triton_decode import Setting, decode_attention

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself runs them"),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("lengths", "setting", "splits"),
    [
        # Rows of about one length have the splits of all, whatever else they may have.
        ((64, 60, 70, 64), Setting(16, 1, 2, 1, most_splits=4), (1, 1, 1, 1)),
        ((64, 64, 64, 64), Setting(16, 1, 2, 2, most_splits=8), (2, 2, 2, 2)),
        ((16, 18, 200, 17), Setting(16, 1, 2, 1, most_splits=4), (1, 1, 3, 1)),
        ((16, 18, 200, 17), Setting(16, 1, 2, 1, most_splits=2), (1, 1, 2, 1)),
        ((16, 18, 200, 17), Setting(16, 1, 2, 1), (1, 1, 1, 1)),
        ((256, 20, 20, 20), Setting(16, 1, 2, 2, most_splits=4), (4, 1, 1, 1)),
        # What masked rows leave is for the others.
        ((0, 100, 0, 100), Setting(16, 1, 2, 2, most_splits=4), (0, 4, 0, 4)),
        ((0, 0, 0), Setting(16, 1, 2, 2, most_splits=4), (0, 0, 0)),
        ((300,) * 300 + (1500,), Setting(32, 1, 2, 1, most_splits=4), (1,) * 300 + (4,)),
    ],
)  # fmt: skip
def test_the_longer_a_row_the_more_splits(
    device: str, lengths: tuple[int, ...], setting: Setting, splits: tuple[int, ...]
) -> None:
    if device == "cpu" and len(lengths) > 10:
        pytest.skip("too long for the interpreter")
    case = Case(decode=lengths, num_q_heads=2, num_kv_heads=1, head_dim=16)
    dtype = torch.float32
    inputs = case.inputs(torch.device(device), dtype)
    out = torch.zeros_like(inputs.q)
    partial, _, arrivals = triton_decode._scratch(inputs.q.device, 16)
    partial.fill_(float("nan"))
    rows = inputs.rows
    decode_attention(
        inputs.q, inputs.layer_kv, rows.block_table, rows.seq_lens, out, 0.25, None, setting
    )
    most, group = setting.most_splits or setting.splits, 2
    parts = partial[: len(lengths) * most * group * 16].view(len(lengths), most, -1)
    written = parts.isfinite().any(-1).sum(-1).tolist()
    # What is not split is written to its place at once.
    assert written == [0 if count == 1 else count for count in splits]
    assert not arrivals.any()
    exact = case.inputs(torch.device("cpu"), torch.float32)
    want = reference.paged_attention(exact.q, exact.layer_kv, exact.rows, 0.25, None)
    there = torch.tensor(lengths) > 0
    torch.testing.assert_close(out.cpu()[there], want[there], rtol=1e-4, atol=1e-4)
