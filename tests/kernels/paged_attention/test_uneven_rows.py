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
        # No row is long: all have the same splits.
        ((64, 60, 200, 0), Setting(16, 1, 2, 1, most_splits=4), (1, 1, 1, 0)),
        ((64, 64, 400, 33), Setting(16, 1, 2, 2, most_splits=4), (2, 2, 2, 2)),
        ((64, 64), Setting(16, 1, 2, 8, most_splits=8), (4, 4)),
        ((20, 2100, 4096), Setting(64, 1, 2, 1, most_splits=4), (1, 2, 2)),
        ((20, 9000, 6000), Setting(64, 1, 2, 1, most_splits=4), (1, 4, 3)),
        ((20, 9000), Setting(64, 1, 2, 1, most_splits=2), (1, 2)),
        ((20, 9000), Setting(64, 1, 2, 1), (1, 1)),
        ((100, 6100), Setting(64, 1, 2, 2, most_splits=8), (2, 3)),
        ((100, 3000), Setting(64, 2, 2, 2, most_splits=8), (2, 2)),
    ],
)  # fmt: skip
def test_a_long_row_has_more_splits(
    device: str, lengths: tuple[int, ...], setting: Setting, splits: tuple[int, ...]
) -> None:
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


def test_more_splits_than_there_is_room_for_are_refused() -> None:
    """Also those that only a long row would have."""
    num_rows = triton_decode._MOST_PROGRAMS // 4 + 1
    q, layer_kv = torch.zeros(num_rows, 1, 16), torch.zeros(1, 2, 1, 16, 16)
    rows = torch.zeros(num_rows, 1, dtype=torch.int32), torch.zeros(num_rows, dtype=torch.int32)
    with pytest.raises(ValueError, match=f"{num_rows} pairs in 4 splits"):
        decode_attention(
            q, layer_kv, *rows, q.clone(), 0.25, None, Setting(16, 1, 2, 1, most_splits=4)
        )
