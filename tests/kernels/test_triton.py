"""Every Triton implementation against its torch reference: on the GPU, or on the CPU in Triton's interpreter.

tests/conftest.py switches the interpreter on where there is no CUDA device; test_triton_sampling.py has the sampler's.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pillion.kernels.embed_tokens import cases as embed_cases
from pillion.kernels.embed_tokens import reference as embed_reference
from pillion.kernels.embed_tokens import triton_impl as embed_triton
from pillion.kernels.fused_linear import reference as fused_reference
from pillion.kernels.fused_linear import triton_impl as fused
from pillion.kernels.fused_linear.tiles import Tile
from pillion.kernels.greedy_step import cases as greedy_cases
from pillion.kernels.greedy_step import reference as greedy_reference
from pillion.kernels.greedy_step import triton_impl as greedy_triton
from pillion.kernels.paged_attention import cases as attention_cases
from pillion.kernels.paged_attention import paged_attention, triton_prefill, whole_prompts
from pillion.kernels.paged_attention import reference as attention_reference
from pillion.kernels.paged_attention.rows import PrefillTiles, cut_queries, queries_per_tile
from pillion.kernels.paged_attention.triton_decode import decode_attention, has_pdl
from pillion.kernels.prepare_decode import cases as prepare_cases
from pillion.kernels.prepare_decode import reference as prepare_reference
from pillion.kernels.prepare_decode import triton_impl as prepare_triton
from pillion.kernels.prepare_mixed import cases as mixed_cases
from pillion.kernels.prepare_mixed import reference as mixed_reference
from pillion.kernels.prepare_mixed import triton_impl as mixed_triton
from pillion.kernels.rms_norm import cases as norm_cases
from pillion.kernels.rms_norm import reference as norm_reference
from pillion.kernels.rms_norm import triton_impl as norm_triton
from pillion.kernels.rms_norm.row_scale import RowScale
from pillion.kernels.rotary_kv_write import cases as rotary_cases
from pillion.kernels.rotary_kv_write import reference as rotary_reference
from pillion.kernels.rotary_kv_write import triton_impl as rotary_triton
from pillion.kernels.silu_and_mul import cases as silu_cases
from pillion.kernels.silu_and_mul import reference as silu_reference
from pillion.kernels.silu_and_mul import triton_impl as silu_triton
from pillion.kernels.token_bitmask import cases as bitmask_cases
from pillion.kernels.token_bitmask import reference as bitmask_reference
from pillion.kernels.token_bitmask import triton_impl as bitmask_triton
from pillion.kernels.update_rows import cases as update_cases
from pillion.kernels.update_rows import reference as update_reference
from pillion.kernels.update_rows import triton_impl as update_triton
from pillion.kernels.write_tables import cases as tables_cases
from pillion.kernels.write_tables import reference as tables_reference
from pillion.kernels.write_tables import triton_impl as tables_triton

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton", "ignore::UserWarning")


@pytest.fixture
def dtype(device: torch.device) -> torch.dtype:
    """What the device computes in; the interpreter's bfloat16 is not the hardware's."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in the Euclidean norm; NaN if anything was left out."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))


def bound(dtype: torch.dtype) -> float:
    return 8e-3 if dtype == torch.bfloat16 else 2e-5


def values(inputs: Any) -> list[Any]:
    return [getattr(inputs, field.name) for field in dataclasses.fields(inputs)]


@pytest.mark.parametrize(("shape", "size"), norm_cases.SHAPES, ids=str)
def test_rms_norm(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], size: int
) -> None:
    x = torch.randn(*shape, size, device=device).to(dtype)
    weight = torch.rand(size, device=device).to(dtype)
    want = norm_reference.rms_norm(x, weight, 1e-5)
    assert error(norm_triton.rms_norm(x, weight, 1e-5), want) < bound(dtype)
    x = x.view(-1, size)
    residual = torch.randn(x.shape, device=device).to(dtype)
    wanted = norm_reference.rms_norm_add(x.clone(), residual.clone(), weight, 1e-5)
    for got, want in zip(norm_triton.rms_norm_add(x, residual, weight, 1e-5), wanted, strict=True):
        assert error(got, want) < bound(dtype)


@pytest.mark.parametrize(("rows", "ffn"), [*silu_cases.SHAPES, (2, 17)])
def test_silu_and_mul(device: torch.device, dtype: torch.dtype, rows: int, ffn: int) -> None:
    x = torch.randn(rows, 2 * ffn, device=device).to(dtype)
    assert error(silu_triton.silu_and_mul(x), silu_reference.silu_and_mul(x)) < bound(dtype)
    row_scale = RowScale(torch.rand(5, rows, device=device) * 100, 64, 1e-5)
    want = silu_reference.silu_and_mul(x, row_scale)
    assert error(silu_triton.silu_and_mul(x, row_scale), want) < bound(dtype)


@pytest.mark.parametrize("case", rotary_cases.CASES, ids=str)
def test_rotary_kv_write(device: torch.device, dtype: torch.dtype, case: rotary_cases.Case) -> None:
    got, want = case.inputs(device, dtype), case.inputs(device, dtype)
    keys = [torch.empty(x.k.shape, device=device, dtype=dtype) for x in (got, want)]
    q = rotary_triton.rotary_kv_write(*values(got), rotated_k=keys[0])
    wanted = rotary_reference.rotary_kv_write(*values(want), rotated_k=keys[1])
    assert error(q, wanted) < bound(dtype) or not case.num_tokens
    assert error(*keys) < bound(dtype) or not case.num_tokens
    # The last block is scratch.
    got_kv, want_kv = got.layer_kv[:-1], want.layer_kv[:-1]
    assert torch.equal(got_kv.isnan(), want_kv.isnan())
    assert error(got_kv.nan_to_num(), want_kv.nan_to_num()) < bound(dtype)


def test_rotary_kv_write_of_scaled_rows(device: torch.device, dtype: torch.dtype) -> None:
    case = rotary_cases.Case(37)
    got, want = case.inputs(device, dtype), case.inputs(device, dtype)
    row_scale = RowScale(torch.rand(3, case.num_tokens, device=device) * 100, 64, 1e-5)
    q = rotary_triton.rotary_kv_write(*values(got), row_scale)
    assert error(q, rotary_reference.rotary_kv_write(*values(want), row_scale)) < bound(dtype)
    assert error(got.layer_kv.nan_to_num(), want.layer_kv.nan_to_num()) < bound(dtype)


@pytest.mark.parametrize("pdl", [False, True], ids=["alone", "pdl"])
@pytest.mark.parametrize("case", embed_cases.CASES, ids=str)
def test_embed_tokens(device: torch.device, case: embed_cases.Case, pdl: bool) -> None:
    if pdl and not has_pdl(device):
        pytest.skip("compute capability 9.0 and up")
    inputs = values(case.inputs(device, torch.bfloat16 if device.type == "cuda" else torch.float16))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty", "empty_like"):  # what the kernel leaves out shows
            patch.setattr(torch, name, poisoned(getattr(torch, name)))
        *got, scaled = embed_triton.embed_tokens(*inputs, pdl=pdl)
    *want, wanted = embed_reference.embed_tokens(*inputs)
    assert (scaled is None) == (wanted is None)
    if scaled is not None and wanted is not None:
        got.append(scaled.x)
        want.append(wanted.x)
        torch.testing.assert_close(scaled.squares, wanted.squares, rtol=1e-5, atol=0)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *arguments, **named: make(*arguments, **named).fill_(float("nan"))


@pytest.mark.parametrize("case", prepare_cases.CASES, ids=str)
def test_prepare_decode(device: torch.device, case: prepare_cases.Case) -> None:
    inputs = values(case.inputs(device))
    got = prepare_triton.prepare_decode(*inputs)
    for ours, theirs in zip(got, prepare_reference.prepare_decode(*inputs), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("case", mixed_cases.CASES, ids=str)
def test_prepare_mixed(device: torch.device, case: mixed_cases.Case) -> None:
    inputs = values(case.inputs(device))
    got = mixed_triton.prepare_mixed(*inputs)
    wanted = mixed_reference.prepare_mixed(*inputs)
    stored = wanted[2] >= 0
    for number, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert ours.dtype == theirs.dtype
        # What is not stored is read from anywhere inside the tables.
        assert (
            torch.equal(ours[stored], theirs[stored]) if number < 2 else torch.equal(ours, theirs)
        )


@pytest.mark.parametrize("case", update_cases.CASES, ids=str)
def test_update_rows(device: torch.device, case: update_cases.Case) -> None:
    got, want = case.inputs(device), case.inputs(device)
    ours = update_triton.update_rows(*values(got))
    theirs = update_reference.update_rows(*values(want))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for name in ("token_table", "num_known", "finished"):
        # The last slot is scratch.
        assert torch.equal(getattr(got, name)[:-1], getattr(want, name)[:-1])


@pytest.mark.parametrize("case", tables_cases.CASES, ids=str)
def test_write_tables(device: torch.device, case: tables_cases.Case) -> None:
    got, want = case.inputs(device), case.inputs(device)
    tables_triton.write_tables(got.tables.places, got.staged, got.num_pieces)
    tables_reference.write_tables(want.tables.words, want.staged, want.num_pieces)
    assert all(map(torch.equal, got.tensors, want.tensors))


@pytest.mark.parametrize("case", greedy_cases.CASES, ids=str)
def test_greedy_step(device: torch.device, case: greedy_cases.Case) -> None:
    outputs = []
    for step in (greedy_triton.greedy_step, greedy_reference.greedy_step):
        inputs = case.inputs(device)
        step(*inputs)
        columns = inputs.columns
        columns[0, columns[2] == 3] = 0  # a failed row's token means nothing
        tables = inputs.token_table, inputs.num_computed, inputs.num_known, inputs.finished
        outputs.append((columns[:, inputs.valid], *(table[:-1] for table in tables)))
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize("case", attention_cases.CASES, ids=str)
def test_paged_attention(
    device: torch.device, dtype: torch.dtype, case: attention_cases.Case
) -> None:
    if device.type == "cpu" and case.prefill and max(q for q, _ in case.prefill) > 100:
        pytest.skip("too long for the interpreter")
    inputs = case.inputs(device, dtype)
    # The reference in float32: bfloat16 is what is being judged.
    exact = case.inputs(torch.device("cpu"), torch.float32)
    scale = case.head_dim**-0.5
    want = attention_reference.paged_attention(
        inputs.q.cpu().float(),
        inputs.layer_kv.cpu().float(),
        exact.rows,
        scale,
        case.sliding_window,
    )
    num_decode, rows = len(case.decode), inputs.rows
    out = torch.full_like(inputs.q, float("nan")).contiguous()
    if num_decode:
        decode_attention(
            inputs.q[:num_decode],
            inputs.layer_kv,
            rows.block_table,
            rows.seq_lens,
            out[:num_decode],
            scale,
            case.sliding_window,
        )
    if case.prefill:
        num_queries = queries_per_tile(rows.max_query_len)
        tile_rows, starts = cut_queries(rows.prefill_query_lens, num_decode, num_queries)
        # Padding, as in a captured step.
        tile_rows = np.append(tile_rows, np.int32(-1))
        tiles = PrefillTiles(
            torch.from_numpy(tile_rows).to(device),
            torch.from_numpy(np.append(starts, np.int32(0))).to(device),
            rows.seq_lens,
            num_queries,
        )
        triton_prefill.prefill_attention(
            inputs.q,
            inputs.layer_kv,
            rows.block_table,
            rows.query_start_loc,
            tiles,
            out,
            scale,
            case.sliding_window,
        )
    counts = torch.ones(len(out), dtype=torch.bool)
    counts[:num_decode] = torch.tensor([length > 0 for length in case.decode], dtype=torch.bool)
    if counts.any():
        assert error(out.cpu()[counts], want[counts]) < bound(dtype)


@pytest.mark.parametrize(
    "case",
    [
        attention_cases.Case(decode=(3,), prefill=((20, 420), (9, 9), (30, 150))),
        attention_cases.Case(prefill=((40, 700),), sliding_window=300),
        attention_cases.Case(prefill=((12, 333),), num_q_heads=4, num_kv_heads=2, head_dim=128),
    ],
    ids=str,
)
def test_few_queries_over_long_sequences_are_split(
    device: torch.device,
    dtype: torch.dtype,
    case: attention_cases.Case,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_prefill, "_LEAST_KEYS", 64)
    launched = []
    kernel = triton_prefill._prefill_attention_kernel

    class Launcher:
        def __getitem__(self, grid: tuple[int, int, int]) -> Any:
            launched.append(grid)
            return kernel[grid]

    monkeypatch.setattr(triton_prefill, "_prefill_attention_kernel", Launcher())
    # Twice: the first run leaves its counters as it found them.
    test_paged_attention(device, dtype, case)
    test_paged_attention(device, dtype, case)
    assert all(splits == 8 for _, _, splits in launched)


@pytest.mark.gpu
def test_large_heads_in_float32_fit_the_shared_memory() -> None:
    case = attention_cases.Case(
        decode=(70, 600), prefill=((130, 530), (9, 9)), num_q_heads=4, num_kv_heads=2, head_dim=128
    )
    test_paged_attention(torch.device("cuda"), torch.float32, case)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_whole_long_prompts_are_attended_in_one_go(head_dim: int) -> None:
    long = ((3100, 3100), (30, 3500), (4096, 4096), (3072, 3080), (5, 5))
    case = attention_cases.Case(
        decode=(700, 3), prefill=long, num_q_heads=8, num_kv_heads=2, head_dim=head_dim
    )
    cuda, scale = torch.device("cuda"), head_dim**-0.5
    assert whole_prompts.is_fastest(cuda, torch.bfloat16, head_dim)
    inputs, exact = case.inputs(cuda, torch.bfloat16), case.inputs(cuda, torch.float32)
    starts = exact.rows.query_start_loc.tolist()
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    of_step = [kv[:, -length:] for kv, length in zip(inputs.dense_kv, lengths, strict=True)]
    keys, values = torch.cat(of_step, dim=1).to(cuda)
    got = paged_attention(inputs.q, inputs.layer_kv, inputs.rows, scale, step_kv=(keys, values))
    want = paged_attention(exact.q, exact.layer_kv, exact.rows, scale)
    for start, end in itertools.pairwise(starts):
        assert error(got[start:end], want[start:end]) < bound(torch.bfloat16)


@pytest.mark.parametrize("rows", [1, 2, 8, 13, 40, 70])
def test_fused_linear(device: torch.device, dtype: torch.dtype, rows: int) -> None:
    hidden, heads, kv_heads, dim = 192, 3, 1, 64
    x = torch.randn(rows, hidden, device=device).to(dtype)
    gain = (torch.rand(hidden, device=device) + 0.5).to(dtype)

    def weight(n: int) -> torch.Tensor:
        return (torch.randn(n, hidden, device=device) * hidden**-0.5).to(dtype)

    head = weight(100)
    got = fused.linear_float32(x, head, tile=Tile(16, 64, 4, 2))
    assert got.dtype == torch.float32
    assert error(got, fused_reference.linear_float32(x, head)) < bound(dtype)

    gate_up = weight(2 * 96)
    got = fused.norm_gated_linear(x, gain, 1e-5, gate_up)
    want = fused_reference.norm_gated_linear(x, gain, 1e-5, gate_up)
    assert error(got, want) < bound(dtype)

    output, bias = weight(80), torch.randn(80, device=device).to(dtype)
    residual = torch.randn(rows, 80, device=device).to(dtype)
    wanted = residual.clone()
    fused.linear_add(x, output, bias, residual)
    fused_reference.linear_add(x, output, bias, wanted)
    assert error(residual, wanted) < bound(dtype)

    qkv = weight((heads + 2 * kv_heads) * dim)
    qkv_bias = torch.randn(len(qkv), device=device).to(dtype)
    angles = torch.rand(rows, dim // 2, device=device)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    slots = torch.randperm(6 * 16, device=device)[:rows]
    slots[0] = -1
    pools = [torch.zeros(7, 2, kv_heads, 16, dim, device=device, dtype=dtype) for _ in range(2)]
    results = [
        module.norm_qkv(x, gain, 1e-5, qkv, qkv_bias, cos_sin, pool, slots, heads)
        for module, pool in zip((fused, fused_reference), pools, strict=True)
    ]
    assert error(*results) < bound(dtype)
    assert error(*pools) < bound(dtype)


@pytest.mark.parametrize("case", bitmask_cases.CASES, ids=str)
def test_token_bitmask(device: torch.device, case: bitmask_cases.Case) -> None:
    got, want = case.inputs(device), case.inputs(device)
    bitmask_triton.apply_token_bitmask(got.logits, got.bitmask, got.rows, got.mask_rows)
    bitmask_reference.apply_token_bitmask(want.logits, want.bitmask, want.rows, want.mask_rows)
    assert torch.equal(got.logits, want.logits)
