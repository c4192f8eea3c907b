"""Decode steps of fused layers, whatever form each product takes, against the same layers operation by operation."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from pillion.actors.gpu_worker.layers.decoder_layer import (
    Attention,
    DecoderLayer,
    FeedForward,
    HeadShape,
)
from pillion.actors.gpu_worker.layers.fused_layer import FusedLayer
from pillion.actors.gpu_worker.quantization.linear import DenseLinear, Linear
from pillion.actors.gpu_worker.step_inputs import AttentionInputs
from pillion.kernels import fused_linear
from pillion.kernels.embed_tokens import embed_tokens
from pillion.kernels.fused_linear import tiles
from pillion.kernels.fused_linear.tiles import Choice, Tile, WideTile

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

NUM_LAYERS, ROWS, HIDDEN, FFN, HEADS, DIM = 3, 5, 64, 128, HeadShape(2, 1, 32), 32
# Of the two types of 16 bits the interpreter knows one.
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float16
DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself runs them"),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
WIDE = WideTile(16, 64, 4, 2, 2, 8)
NARROW = Tile(16, 64, 4, 2)
# qkv, output, gate and up, down
FORMS: list[tuple[Choice, ...]] = [
    (None, None, None, None),
    (NARROW, NARROW, NARROW, NARROW),
    (WIDE, WIDE, WIDE, WIDE),
    (None, WIDE, None, WIDE),
    (WIDE, None, WIDE, NARROW),
    (NARROW, WIDE, WIDE, None),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def random(device: torch.device, *shape: int) -> torch.Tensor:
    return (torch.randn(shape) * shape[-1] ** -0.5).to(device, DTYPE)


def in_float32(layer: DecoderLayer) -> DecoderLayer:
    """The same weights, for what rounding is measured against."""

    def dense(linear: Linear) -> DenseLinear:
        assert isinstance(linear, DenseLinear)
        return DenseLinear(linear.weight.float())

    attention, feed_forward = layer.attention, layer.feed_forward
    return replace(
        layer,
        attention_norm=layer.attention_norm.float(),
        attention=replace(attention, qkv=dense(attention.qkv), output=dense(attention.output)),
        feed_forward_norm=layer.feed_forward_norm.float(),
        feed_forward=FeedForward(dense(feed_forward.gate_up), dense(feed_forward.down)),
    )


def assert_as_exact(found: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> None:
    """Rounding has moved `found` about as far from what is exact as it has `plain`, and no element by itself."""
    noise = (plain.float() - exact).square().mean().sqrt()
    off = (found.float() - exact).abs()
    assert off.square().mean().sqrt() < 1.5 * noise
    assert off.max() < 8 * noise


def decoder_layer(device: torch.device) -> DecoderLayer:
    def dense(n: int, k: int) -> DenseLinear:
        return DenseLinear(random(device, n, k))

    def gain() -> torch.Tensor:
        return (torch.rand(HIDDEN) + 0.5).to(device, DTYPE)

    num_heads = HEADS.num_q_heads + 2 * HEADS.num_kv_heads
    attention = Attention(
        dense(num_heads * DIM, HIDDEN),
        dense(HIDDEN, HEADS.num_q_heads * DIM),
        HEADS,
        None,
        None,
        1e-5,
    )
    feed_forward = FeedForward(dense(2 * FFN, HIDDEN), dense(HIDDEN, FFN))
    return DecoderLayer(gain(), attention, gain(), feed_forward, 1e-5)


def unfused(
    layers: Sequence[DecoderLayer],
    x: torch.Tensor,
    cos_sin: torch.Tensor,
    pools: Sequence[torch.Tensor],
    attention: AttentionInputs,
) -> torch.Tensor:
    """The stream behind the layers, operation by operation."""
    addend, residual = torch.zeros_like(x), x.clone()
    for layer, layer_kv in zip(layers, pools, strict=True):
        addend, residual = layer.apply(addend, residual, cos_sin, layer_kv, attention)
    return addend + residual


@pytest.mark.parametrize("forms", FORMS, ids=str)
def test_every_form_is_the_same_layer(
    device: torch.device, forms: tuple[Choice, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    num_heads = HEADS.num_q_heads + 2 * HEADS.num_kv_heads
    shapes: list[tuple[tiles.Kind, int, int]] = [
        ("qkv", num_heads * DIM, HIDDEN),
        ("add", HIDDEN, HEADS.num_q_heads * DIM),
        ("gated", 2 * FFN, HIDDEN),
        ("add", HIDDEN, FFN),
    ]
    table = {shape: {8: form} for shape, form in zip(shapes, forms, strict=True)}
    monkeypatch.setattr(tiles, "MEASURED", table)
    layers = [decoder_layer(device) for _ in range(NUM_LAYERS)]
    norms = [*(layer.attention_norm for layer in layers[1:]), layers[0].attention_norm]
    x = random(device, ROWS, HIDDEN) * 8
    angles = torch.rand(ROWS, DIM // 2, device=device)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    pool = random(device, ROWS + 1, 2, HEADS.num_kv_heads, 16, DIM)
    pools = [[pool.to(dtype, copy=True) for _ in layers] for dtype in (DTYPE, DTYPE, torch.float32)]
    attention = AttentionInputs(
        query_start_loc=torch.arange(ROWS + 1, dtype=torch.int32, device=device),
        seq_lens=torch.arange(1, ROWS + 1, dtype=torch.int32, device=device),
        block_table=torch.arange(ROWS, dtype=torch.int32, device=device)[:, None],
        slot_mapping=torch.arange(ROWS, device=device) * 17,
        num_decode_rows=ROWS,
        max_query_len=1,
        max_seq_len=ROWS,
        max_decode_seq_len=ROWS,
    )
    fused = [
        FusedLayer.of(layer, norm, pdl=False) for layer, norm in zip(layers, norms, strict=True)
    ]
    assert fused[0] is not None
    each = torch.arange(ROWS, device=device)
    stream, _, scaled = embed_tokens(each, each, x, cos_sin, DTYPE, fused[0].first_gain(ROWS))
    for fused_layer, layer_kv in zip(fused, pools[0], strict=True):
        assert fused_layer is not None
        scaled = fused_layer.apply(stream, scaled, cos_sin, layer_kv, attention)
    plain, exact = (
        unfused(each, x.to(dtype), cos_sin, layer_pools, attention)
        for each, dtype, layer_pools in (
            (layers, DTYPE, pools[1]),
            ([in_float32(layer) for layer in layers], torch.float32, pools[2]),
        )
    )
    assert_as_exact(stream, plain, exact)
    for ours, theirs, exact in zip(*pools, strict=True):
        written = exact != pool.float()
        assert torch.equal(ours[~written], pool[~written])
        assert_as_exact(ours[written], theirs[written], exact[written])


@pytest.mark.parametrize(
    ("is_short", "wanted"),
    [(True, None), (False, None), (False, [0, 4]), (False, [4, 4, 1]), (False, [])],
    ids=str,
)
def test_steps_with_prompts_are_the_same_layers(
    device: torch.device, is_short: bool, wanted: list[int] | None
) -> None:
    """A decode row and a prompt of four tokens; of the last layer only the wanted tokens.

    Short steps take the products of decode steps and leave the choice of tokens to who reads the stream.
    """
    torch.manual_seed(2)
    layers = [decoder_layer(device) for _ in range(NUM_LAYERS)]
    x = random(device, ROWS, HIDDEN) * 8
    angles = torch.rand(ROWS, DIM // 2, device=device)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    pool = random(device, 3, 2, HEADS.num_kv_heads, 16, DIM)
    pools = [[pool.to(dtype, copy=True) for _ in layers] for dtype in (DTYPE, DTYPE, torch.float32)]
    attention = AttentionInputs(
        query_start_loc=torch.tensor([0, 1, ROWS], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([3, 4], dtype=torch.int32, device=device),
        block_table=torch.tensor([[0], [1]], dtype=torch.int32, device=device),
        slot_mapping=torch.tensor([2, 16, 17, 18, 19], device=device),
        num_decode_rows=1,
        max_query_len=4,
        max_seq_len=4,
        max_decode_seq_len=3,
        prefill_query_lens=(4,),
        prefill_seq_lens=(4,),
    )
    indices = None if wanted is None else torch.tensor(wanted, dtype=torch.int64, device=device)
    stream, scaled = x.clone(), None
    norms = [*(layer.attention_norm for layer in layers[1:]), layers[0].attention_norm]
    for layer, norm, layer_kv in zip(layers, norms, pools[0], strict=True):
        fused = FusedLayer.of(layer, norm, pdl=False)
        assert fused is not None
        if is_short:
            scaled = fused.apply(stream, scaled, cos_sin, layer_kv, attention)
        else:
            of_layer = indices if layer is layers[-1] else None
            stream = fused.apply_prompts(stream, cos_sin, layer_kv, attention, of_layer)
    plain, exact = (
        unfused(each, x.to(dtype), cos_sin, layer_pools, attention)
        for each, dtype, layer_pools in (
            (layers, DTYPE, pools[1]),
            ([in_float32(layer) for layer in layers], torch.float32, pools[2]),
        )
    )
    if indices is not None:
        plain, exact = plain[indices], exact[indices]
    assert stream.shape == plain.shape
    if len(stream):
        assert_as_exact(stream, plain, exact)
    for ours, theirs, exact in zip(*pools, strict=True):
        written = exact[:2] != pool[:2].float()
        assert torch.equal(ours[:2][~written], pool[:2][~written])
        assert_as_exact(ours[:2][written], theirs[:2][written], exact[:2][written])


@pytest.mark.parametrize(("form", "dtype", "takes"), [
    (WIDE, torch.bfloat16, True),
    (WIDE, torch.float16, True),
    (None, torch.bfloat16, True),
    (None, torch.float16, False),  # the library's product has to hold what is not divided yet
    (NARROW, torch.bfloat16, False),
])  # fmt: skip
def test_who_takes_a_stream_that_is_not_divided(
    form: Choice, dtype: torch.dtype, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "MEASURED", {("gated", 2 * FFN, HIDDEN): {8: form}})
    weight = torch.empty(2 * FFN, HIDDEN, dtype=dtype)
    assert fused_linear.takes_scaled("gated", weight, ROWS) == takes
