"""What the processes that compile find out about candidates, and what a worker makes of it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from pillion.actors.gpu_worker.quantization.linear import DenseLinear
from pillion.actors.gpu_worker.tuning import trial, whole_layers
from pillion.actors.gpu_worker.tuning.bench import ModelBench
from pillion.actors.gpu_worker.tuning.checking import check_part, right_candidates
from pillion.actors.gpu_worker.tuning.forms import Form
from pillion.actors.gpu_worker.tuning.plan import Candidate, Product, TuningPlan
from pillion.actors.gpu_worker.tuning.trial import Trial, Weights
from pillion.kernels.fused_linear import wide_impl
from pillion.kernels.fused_linear.tiles import Choice, Tile, WideTile

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there test_on_cuda.py has the real ones"),
]

HIDDEN, FFN, VOCAB, ROWS = 64, 128, 80, 8
HEADS = HeadShape(2, 1, 32)
# Of the two types of 16 bits the interpreter knows one.
DTYPE = torch.float16
WIDE = WideTile(16, 64, 4, 2, 2, 8)
NARROW = Tile(16, 64, 4, 2)
PRODUCTS = (
    Product("qkv", "qkv", 128, HIDDEN, True),
    Product("output", "add", HIDDEN, 64),
    Product("gated", "gated", 2 * FFN, HIDDEN),
    Product("down", "add", HIDDEN, FFN),
    Product("head", "head", VOCAB, HIDDEN),
)


class TinyPlan(TuningPlan):
    """Tries every form of every product."""

    __slots__ = ()

    def forms(self, product: Product, rows: int) -> list[Form]:
        if product.kind == "head":
            return [Form(choice, False) for choice in (None, NARROW, WIDE)]
        found = [Form(None, False), Form(NARROW, False), Form(WIDE, True)]
        return found if product.kind == "add" else [*found, Form(WIDE, False)]


class TinyModel:
    """Its layers, fused, on a CPU."""

    def __init__(self, num_layers: int = 3) -> None:
        torch.manual_seed(1)
        layers = [decoder_layer() for _ in range(num_layers)]
        norms = [*(layer.attention_norm for layer in layers[1:]), layers[0].attention_norm]
        fused = [
            FusedLayer.of(layer, norm, pdl=False) for layer, norm in zip(layers, norms, strict=True)
        ]
        self.fused_layers = [layer for layer in fused if layer is not None]
        self.fused_head = random(VOCAB, HIDDEN)


def random(*shape: int) -> torch.Tensor:
    return (torch.randn(shape) * shape[-1] ** -0.5).to(DTYPE)


def decoder_layer() -> DecoderLayer:
    def dense(n: int, k: int, bias: torch.Tensor | None = None) -> DenseLinear:
        return DenseLinear(random(n, k), bias)

    def gain() -> torch.Tensor:
        return (torch.rand(HIDDEN) + 0.5).to(DTYPE)

    qkv = dense(128, HIDDEN, random(128))
    attention = Attention(qkv, dense(HIDDEN, 64), HEADS, None, None, 1e-5)
    feed_forward = FeedForward(dense(2 * FFN, HIDDEN), dense(HIDDEN, FFN))
    return DecoderLayer(gain(), attention, gain(), feed_forward, 1e-5)


@pytest.fixture
def tiny(plan: TuningPlan) -> TinyPlan:
    return TinyPlan(plan.card, DTYPE, HEADS, PRODUCTS, (ROWS,))


@pytest.fixture
def model() -> Any:
    return TinyModel()


def check(plan: TuningPlan, model: Any, parts: int = 2, seconds: float = 60.0) -> list[str]:
    lines: list[str] = []
    for part in range(parts):
        check_part(plan, model, part, parts, seconds, lines.append)
    return lines


def test_every_form_is_right(tiny: TinyPlan, model: Any) -> None:
    lines = check(tiny, model)
    right, all_checked = right_candidates(tiny, lines)
    assert right == set(tiny.candidates()), lines
    assert all_checked


@pytest.mark.parametrize("kind", ["wide_linear_kernel", "wide_qkv_kernel"])
def test_wrong_forms_are_found(
    tiny: TinyPlan, model: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that write nothing, so that what was there before is taken for their result."""

    class Nothing:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *_, **__: None

    monkeypatch.setattr(wide_impl, kind, Nothing())
    lines = check(tiny, model)
    right, all_checked = right_candidates(tiny, lines)
    assert all_checked
    assert {each.product.kind for each in tiny.candidates() if each not in right} == (
        {"qkv"} if kind == "wide_qkv_kernel" else {"add", "gated", "head"}
    )
    assert all(isinstance(each.form.choice, WideTile) for each in set(tiny.candidates()) - right)


def test_forms_that_cannot_run_are_told(
    tiny: TinyPlan, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of resource:\nshared memory")

    monkeypatch.setattr(wide_impl, "linear_add", fail)
    lines = check(tiny, model)
    right, all_checked = right_candidates(tiny, lines)
    assert all_checked
    assert any("failed: RuntimeError" in line for line in lines)
    assert not any(
        each.product.kind == "add" and isinstance(each.form.choice, WideTile) for each in right
    )


def test_what_there_was_no_time_for_is_not_right(tiny: TinyPlan, model: Any) -> None:
    assert right_candidates(tiny, check(tiny, model, seconds=-1.0)) == (set(), False)


def test_lines_of_others_are_passed_over(tiny: TinyPlan) -> None:
    lines = ["", "Warning: right", "0 right", "1 off by 1.0e-01", "999 right", "-1 right"]
    right, all_checked = right_candidates(tiny, lines)
    assert right == {tiny.candidates()[0]}
    assert not all_checked


class TestBench:
    @pytest.fixture(autouse=True)
    def _graphs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run takes as many microseconds as it has launches."""
        self.num_runs = 0

        def graph_us(run: Callable[[], object]) -> float:
            self.num_runs += 1
            run()
            return 8.0

        for module in (trial, whole_layers):
            monkeypatch.setattr(module, "graph_us", graph_us)

    def test_a_product_is_timed_over_all_layers(self, tiny: TinyPlan, model: Any) -> None:
        bench = ModelBench(tiny, model, model_bytes=1)
        candidates = [each for each in tiny.candidates() if each.form.choice is None]
        for candidate in candidates:
            assert bench.microseconds(candidate) == 1.0
        assert self.num_runs == len(candidates) == len(PRODUCTS)

    @pytest.mark.parametrize("factor", [1.0, 1.5])
    def test_layers_are_compared(
        self, tiny: TinyPlan, model: Any, factor: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        right = wide_impl.norm_gated_linear

        def changed(*arguments: Any, **named: Any) -> torch.Tensor:
            return right(*arguments, **named) * factor

        monkeypatch.setattr(wide_impl, "norm_gated_linear", changed)
        bench = ModelBench(tiny, model, model_bytes=1)
        forms: dict[str, Choice] = {"qkv": WIDE, "output": NARROW, "gated": WIDE, "down": WIDE}
        table = {
            (product.kind, product.n, product.k): {ROWS: forms[product.name]}
            for product in PRODUCTS
            if product.name in forms
        }
        before_us, after_us, error = bench.compare_layers(ROWS, table)
        assert (before_us, after_us) == (8.0 / 3, 8.0 / 3)
        assert (error < 4e-3) == (factor == 1.0)


class TestWeights:
    def test_there_are_enough_to_miss_the_cache(self, model: Any) -> None:
        weights = Weights.of(PRODUCTS[1], model)
        size = weights.each[0].nbytes
        assert len(weights.each) == 3
        many = weights.missing_the_cache(4 * size, model_bytes=100 * size)
        assert len(many.each) == 12 == len(many.biases)
        assert len({weight.data_ptr() for weight in many.each}) == 12
        assert torch.equal(many.each[11], weights.each[0])

    def test_a_model_that_fits_the_cache_finds_its_own(self, model: Any) -> None:
        weights = Weights.of(PRODUCTS[0], model)
        few = weights.missing_the_cache(1 << 30, model_bytes=2 * weights.each[0].nbytes)
        assert len({weight.data_ptr() for weight in few.each}) == 2
        assert len(few.each) == 8 == len(few.biases)

    def test_large_ones_need_no_copies(self, model: Any) -> None:
        weights = Weights.of(PRODUCTS[4], model)
        again = weights.missing_the_cache(weights.each[0].nbytes // 4, model_bytes=1 << 30)
        assert {weight.data_ptr() for weight in again.each} == {model.fused_head.data_ptr()}


def test_a_kernel_that_leaves_something_behind_is_wrong(
    tiny: TinyPlan, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first launch is right, its second not."""
    right, calls = wide_impl.norm_gated_linear, []

    def once(*arguments: Any, **named: Any) -> torch.Tensor:
        calls.append(1)
        out = right(*arguments, **named)
        return out if len(calls) == 1 else out * 1.1

    monkeypatch.setattr(wide_impl, "norm_gated_linear", once)
    product = PRODUCTS[2]
    error = Trial(tiny, product, ROWS, Weights.of(product, model)).error(Form(WIDE, True))
    assert 0.05 < error < math.inf
    assert Candidate(product, ROWS, Form(WIDE, True)) in tiny.candidates()
    assert replace(tiny, row_classes=()).candidates() == []
