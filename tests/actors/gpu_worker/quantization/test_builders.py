"""Products from stored tensors: parts joined, forms chosen, memory counted."""

from collections.abc import Sequence

import pytest
import torch

from pillion.actors.gpu_worker.quantization import builders
from pillion.actors.gpu_worker.quantization.adaptive_linear import AdaptiveLinear
from pillion.actors.gpu_worker.quantization.builders import (
    AdaptiveBuilder,
    DenseBuilder,
    LinearBuilder,
    choose_builder,
    memory_bytes,
    stack,
)
from pillion.actors.gpu_worker.quantization.cpu_forms import works
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight

CPU = torch.device("cpu")
IN = 64


class Stored:
    """A tensor that is "on disk", with 4-bit codes or without."""

    def __init__(self, num_rows: int, *, four_bit: bool = False) -> None:
        self.shape: tuple[int, ...] = (num_rows, IN)
        generator = torch.Generator().manual_seed(num_rows)
        codes = torch.randint(0, 16, self.shape, generator=generator).to(torch.uint8)
        scales = torch.rand(num_rows, IN // 32, generator=generator)
        offsets = torch.randn(num_rows, IN // 32, generator=generator)
        self.codes = FourBitWeight(codes, scales, offsets) if four_bit else None
        self.values = codes * scales.repeat_interleave(32, 1) + offsets.repeat_interleave(32, 1)

    def copy_to(self, out: torch.Tensor) -> None:
        out.copy_(self.values)

    def four_bit(self) -> FourBitWeight | None:
        return self.codes


def check(linear: object, parts: Sequence[Stored], tolerance: float) -> None:
    weight = torch.cat([part.values for part in parts]).double()
    for num_rows in (1, 3, 40, 100):
        x = torch.randn(num_rows, IN, generator=torch.Generator().manual_seed(num_rows))
        result = linear.apply(x)  # type: ignore[attr-defined]
        expected = x.double() @ weight.T
        assert float((result.double() - expected).norm() / expected.norm()) < tolerance


def test_parts_are_stacked_in_order() -> None:
    parts = [Stored(3), Stored(5)]
    out = stack(parts, torch.float32, CPU)
    assert torch.equal(out, torch.cat([part.values for part in parts]))


def test_a_dense_product_of_several_parts() -> None:
    parts = [Stored(48), Stored(16), Stored(16)]
    linear = DenseBuilder(torch.float32, CPU).build(parts, None)
    check(linear, parts, 1e-6)
    assert linear.num_bytes == 80 * IN * 4


def test_a_tied_head_in_sixteen_bits_costs_nothing() -> None:
    table = Stored(48).values.bfloat16()
    tied = DenseBuilder(torch.bfloat16, CPU).build_tied(table)
    assert (tied.num_bytes, tied.row_bytes) == (0, table.nbytes)


@pytest.mark.parametrize("bytes_per_weight", [2.0, 3.0, 10.0])
def test_an_adaptive_model(bytes_per_weight: float) -> None:
    builder = AdaptiveBuilder(bytes_per_weight)
    kinds: list[list[Stored]] = [
        [Stored(48, four_bit=True), Stored(16, four_bit=True)],
        [Stored(48, four_bit=True), Stored(16)],  # a part without codes: none for the product
        [Stored(40, four_bit=True)],  # a size that torch doesn't pack
        [Stored(64)],
    ]
    samples = [(builder.build(parts, None), parts) for parts in kinds]
    builder.settle()
    later = [(builder.build(parts, None), parts) for parts in kinds]
    table = Stored(96)
    later.append((builder.build_tied(table.values.bfloat16()), [table]))
    builder.settle()
    for linear, parts in samples + later:
        check(linear, parts, 0.02)
        assert isinstance(linear, AdaptiveLinear)
        assert 1 <= len(linear.forms) <= 2
        assert bytes_per_weight == 10.0 or "packed_float32" not in linear.forms
    for (first, _), (second, _) in zip(samples, later[: len(samples)], strict=True):
        assert isinstance(first, AdaptiveLinear)
        assert isinstance(second, AdaptiveLinear)
        assert set(first.forms) == set(second.forms)
    forms = [set(each.forms) for each, _ in samples if isinstance(each, AdaptiveLinear)]
    assert not any("four_bit" in each for each in forms[1:])
    if bytes_per_weight == 2.0 and works("four_bit"):
        assert forms[0] == {"four_bit"}


def test_bias_is_added_by_every_form() -> None:
    bias = torch.linspace(-5, 5, 64)
    part = Stored(64, four_bit=True)
    builder = AdaptiveBuilder(10.0)
    linear = builder.build([part], bias)
    assert isinstance(linear, AdaptiveLinear)
    for form in linear.forms.values():
        torch.testing.assert_close(
            form.apply(torch.zeros(2, IN)), bias.expand(2, -1), rtol=1e-2, atol=0
        )


def test_who_gets_which_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(dtype: torch.dtype, device: str, *, is_auto: bool) -> LinearBuilder:
        return choose_builder(dtype, torch.device(device), 1000, is_auto=is_auto)

    assert isinstance(chosen(torch.float32, "cpu", is_auto=True), AdaptiveBuilder)
    assert isinstance(chosen(torch.float32, "cpu", is_auto=False), DenseBuilder)
    assert isinstance(chosen(torch.bfloat16, "cpu", is_auto=True), DenseBuilder)
    assert isinstance(chosen(torch.float32, "cuda", is_auto=True), DenseBuilder)

    def largest_form(memory: int) -> bool:
        monkeypatch.setattr(builders, "memory_bytes", lambda: memory)
        builder = chosen(torch.float32, "cpu", is_auto=True)
        linear = builder.build([Stored(64)], None)
        assert isinstance(linear, AdaptiveLinear)
        return "packed_float32" in linear.forms

    assert not largest_form(11_999)  # 1000 weights of 6 bytes are more than half of it
    assert largest_form(12_000) == works("packed_float32")


def test_the_machine_has_memory() -> None:
    assert memory_bytes() > 1 << 28
