"""Every form of a weight against the product in float64, and the choice between forms."""

from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker.quantization.adaptive_linear import (
    ROWS,
    AdaptiveLinear,
    fastest_plan,
    measure,
)
from pillion.actors.gpu_worker.quantization.cpu_forms import (
    Bfloat16Linear,
    Form,
    FourBitLinear,
    PackedLinear,
    can_keep_four_bits,
    works,
)
from pillion.actors.gpu_worker.quantization.gguf_blocks import unpack
from pillion.actors.gpu_worker.quantization.linear import DenseLinear, Linear
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight
from pillion.runtime.gguf_file import GGML_TYPES

OUT, IN = 96, 160
BFLOAT16_ERROR = 2**-7


def weight() -> torch.Tensor:
    return torch.randn(OUT, IN, generator=torch.Generator().manual_seed(1))


def rows(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, IN, generator=torch.Generator().manual_seed(num_rows))


def bias() -> torch.Tensor:
    return torch.randn(OUT, generator=torch.Generator().manual_seed(2))


def four_bit_weight() -> tuple[FourBitWeight, torch.Tensor]:
    """Codes of a Q4_1 matrix, and the matrix."""
    raw = gguf.quantize(weight().numpy(), gguf.GGMLQuantizationType.Q4_1)
    blocks = unpack(torch.from_numpy(raw), GGML_TYPES[3])
    assert blocks.offsets is not None
    codes = FourBitWeight(
        blocks.codes.view(OUT, IN), blocks.scales.view(OUT, -1), blocks.offsets.view(OUT, -1)
    )
    exact = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_1)
    return codes, torch.from_numpy(exact.astype(np.float32))


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33])
@pytest.mark.parametrize("with_bias", [False, True])
def test_forms_equal_the_product(num_rows: int, with_bias: bool) -> None:
    x, added = rows(num_rows), bias() if with_bias else None
    expected = x.double() @ weight().double().T + (0 if added is None else added.double())
    forms: list[tuple[Linear, float]] = [
        (DenseLinear(weight(), added), 1e-6),
        (Bfloat16Linear(weight().bfloat16(), added), BFLOAT16_ERROR),
    ]
    if works("packed_float32"):
        forms.append((PackedLinear(weight(), added), 1e-6))
    if works("packed_bfloat16"):
        forms.append((PackedLinear(weight().bfloat16(), added), BFLOAT16_ERROR))
    before = x.clone()
    for form, tolerance in forms:
        result = form.apply(x)
        assert result.dtype == torch.float32
        assert relative_error(result, expected) < tolerance
        assert torch.equal(x, before)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33])
@pytest.mark.parametrize("with_bias", [False, True])
def test_four_bit_codes_lose_no_more_than_bfloat16(num_rows: int, with_bias: bool) -> None:
    x, added = rows(num_rows), bias() if with_bias else None
    codes, exact = four_bit_weight()
    expected = x.double() @ exact.double().T + (0 if added is None else added.double())
    result = FourBitLinear(codes, added).apply(x)
    rounded = DenseLinear(exact.bfloat16(), None).apply(x.bfloat16()).float()
    rounded = rounded if added is None else rounded + added
    assert relative_error(result, expected) < BFLOAT16_ERROR
    assert relative_error(result, expected) < 1.5 * relative_error(rounded, expected)


def test_no_rows_are_fine() -> None:
    codes, exact = four_bit_weight()
    forms: list[Linear] = [
        DenseLinear(exact),
        Bfloat16Linear(exact.bfloat16()),
        FourBitLinear(codes),
    ]
    if works("packed_float32"):
        forms.append(PackedLinear(exact))
    for form in forms:
        assert form.apply(torch.empty(0, IN)).shape == (0, OUT)


def test_rows_that_torch_cannot_pack() -> None:
    assert can_keep_four_bits(48)
    assert not can_keep_four_bits(40)


class Fake:
    """A form that says who it is."""

    def __init__(self, name: float) -> None:
        self.num_bytes = self.row_bytes = 1
        self.name = name

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((x.shape[0], 1), self.name)


def test_the_plan_says_which_form_computes_how_many_rows() -> None:
    linear = AdaptiveLinear(
        IN, {"bfloat16": Fake(1), "four_bit": Fake(2), "packed_float32": Fake(3)}
    )
    plan: tuple[Form, ...] = ("four_bit", "four_bit", "packed_float32") + ("packed_float32",) * 3
    linear.follow(plan)
    assert set(linear.forms) == {"four_bit", "packed_float32"}
    assert (linear.num_bytes, linear.row_bytes) == (2, 1)
    used = {count: float(linear.apply(rows(count))[0, 0]) for count in (1, 2, 4, 5, 8, 64, 65, 999)}
    assert used == {1: 2, 2: 2, 4: 2, 5: 3, 8: 3, 64: 3, 65: 3, 999: 3}


def plan_of(**milliseconds: tuple[float, ...]) -> list[str]:
    forms = list(milliseconds)
    seconds = {
        count: {form: milliseconds[form][index] for form in forms}
        for index, count in enumerate(ROWS)
    }
    return list(fastest_plan(seconds, frozenset(forms)))  # type: ignore[arg-type]


def test_the_fastest_plan_switches_once() -> None:
    four_bit, packed = (10, 20, 30, 60, 130, 270), (36, 47, 58, 75, 101, 190)
    assert (
        plan_of(four_bit=four_bit, packed_float32=packed)
        == ["four_bit"] * 4 + ["packed_float32"] * 2
    )
    disturbed = (10, 20, 300, 60, 130, 270)
    assert plan_of(four_bit=disturbed, packed_float32=packed) != ["packed_float32"] * 6
    assert plan_of(four_bit=four_bit) == ["four_bit"] * 6


def test_a_small_gain_is_not_worth_a_second_form() -> None:
    assert (
        len(
            set(plan_of(four_bit=(95, 10, 10, 10, 10, 10), packed_float32=(90, 20, 20, 20, 20, 20)))
        )
        == 1
    )


def test_measured_plans_name_forms_that_are_there() -> None:
    forms: dict[Form, Linear] = {"bfloat16": Bfloat16Linear(weight().bfloat16())}
    if works("packed_float32"):
        forms["packed_float32"] = PackedLinear(weight())
    linears = [AdaptiveLinear(IN, dict(forms)) for _ in range(3)]
    plan = fastest_plan(measure(linears), frozenset(forms))
    assert len(plan) == len(ROWS)
    for linear in linears:
        linear.follow(plan)
        for count in (1, 5, 70):
            expected = rows(count).double() @ weight().double().T
            assert relative_error(linear.apply(rows(count)), expected) < BFLOAT16_ERROR


@pytest.fixture
def fresh_works() -> Iterator[None]:
    """`works` as if this process had not asked yet, before and after."""
    works.cache_clear()
    yield
    works.cache_clear()


@pytest.mark.usefixtures("fresh_works")
def test_a_form_that_is_wrong_or_raises_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert works("bfloat16")
    monkeypatch.setattr(PackedLinear, "apply", lambda self, x: torch.zeros(len(x), 48))
    assert not works("packed_float32")

    def refuse(self: FourBitLinear, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not on this CPU")

    monkeypatch.setattr(FourBitLinear, "apply", refuse)
    assert not works("four_bit")


def test_a_wide_batch_is_as_exact_where_the_weight_is_widened() -> None:
    x = rows(40)
    linear = Bfloat16Linear(weight().bfloat16(), bias())
    expected = x.double() @ weight().bfloat16().double().T + bias().double()
    tolerance = BFLOAT16_ERROR if works("packed_bfloat16") else 1e-6
    assert relative_error(linear.apply(x), expected) < tolerance
