"""The tuner of the decode products: a tiny model in Triton's interpreter, and what is chosen from given times."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import tune_fused_linear as tuner
from products import candidates, checking, choice, layers, product
from products.product import Form, Library, Product, Shape

from pillion.kernels.fused_linear import wide_impl
from pillion.kernels.fused_linear.tiles import MEASURED, Tile, WideTile

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
TINY = Shape(64, 2, 1, 32, 128, 2, 80)
WIDE = WideTile(16, 64, 4, 2, 2, 8)
NARROW = Tile(16, 64, 4, 2)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(run: Callable[[], object]) -> float:
        run()
        return 8.0

    for module in (product, layers):
        monkeypatch.setattr(module, "DEVICE", "cpu")
        monkeypatch.setattr(module, "DTYPE", torch.float16)
        monkeypatch.setattr(module, "PDL", False)
        monkeypatch.setattr(module, "graph_us", run_once)
    monkeypatch.setattr(product, "_ROTATING_BYTES", 1 << 12)
    monkeypatch.setattr(layers, "_CONTEXT", 32)
    monkeypatch.setitem(product.SHAPES, "tiny", TINY)
    torch.manual_seed(2)


@pytest.mark.parametrize("name", product.PRODUCTS)
@pytest.mark.parametrize("form", [WIDE, NARROW, Library(scaled=False), Library(scaled=True)])
def test_every_form_is_right(name: str, form: Form) -> None:
    made = Product(TINY, name, 8)
    assert made.error(form) < 4e-3
    assert made.microseconds(form) > 0


@pytest.mark.parametrize("name", ["output", "gated"])
def test_what_is_wrong_or_missing_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Product(TINY, name, 8)
    monkeypatch.setattr(wide_impl, "_launch", lambda *_, **__: made.scaled)
    assert not made.error(WIDE) < checking._LARGEST_ERROR


def test_checks_say_what_is_right_and_what_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    groups = [
        [checking.Candidate("tiny", "gated", 8, WIDE)],
        [checking.Candidate("tiny", "gated", 8, Library(scaled=True))],
        [checking.Candidate("tiny", "none", 8, WIDE), checking.Candidate("tiny", "qkv", 8, WIDE)],
    ]
    checking.check_part(groups, 0, 2, 1)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"group": 1}
    assert lines[1]["key"] == ["tiny", "none", 8, ["WideTile", *WIDE]]
    assert "KeyError" in lines[1]["failed"]
    assert lines[2]["error"] < checking._LARGEST_ERROR
    assert choice.from_json(lines[2]["key"][3]) == WIDE


def test_candidates_fit_a_multiprocessor_and_share_kernels() -> None:
    groups = checking.candidates(["8b", "1b", "135m"], [1, 8, 16, 32, 64, 128, 256])
    wide = [c for group in groups for c in group if isinstance(c.form, WideTile)]
    products = {(c.shape, c.name, c.rows) for c in wide}
    assert len(products) == 3 * 5 * 6  # each model and product, each number of rows beyond one
    for c in wide:
        assert isinstance(c.form, WideTile)
        tiles = c.form.block_n * (2 if c.name == "gated" else 1) + c.form.block_rows
        assert tiles * c.form.block_k * 2 * c.form.stages < candidates.SHARED_BYTES
    kernels = sum(isinstance(group[0].form, WideTile) for group in groups)
    assert kernels < len(wide) / 2


def test_writer_and_reader_are_chosen_together() -> None:
    library, on_scaled = Library(scaled=False), Library(scaled=True)
    times: choice.Times = {
        # The best reader needs a stream that only the wide writer gives at no cost.
        ("tiny", "output", 8): {NARROW: 5.0, library: 6.0, WIDE: 6.5},
        ("tiny", "gated", 8): {NARROW: 9.0, library: 9.5, on_scaled: 7.0, WIDE: 8.0},
        # Here what the wide reader gains is worth a launch of its own, but not the wide writer.
        ("tiny", "down", 8): {NARROW: 5.0, WIDE: 9.0},
        ("tiny", "qkv", 8): {NARROW: 9.0, WIDE: 5.0},
        ("tiny", "head", 8): {NARROW: 9.0, WIDE: 8.0},
    }
    found = choice.best_forms(times, {("tiny", 8): 1.5}, "tiny", 8)
    assert found == {"output": WIDE, "gated": on_scaled, "down": NARROW, "qkv": WIDE, "head": WIDE}
    del times["tiny", "gated", 8]
    assert "output" not in choice.best_forms(times, {}, "tiny", 8)


def test_layers_are_the_same_with_every_table() -> None:
    made = layers.Layers(TINY, 8, num_layers=2)
    forms: dict[str, Form] = dict.fromkeys(("qkv", "output", "gated", "down"), WIDE)
    before = dict(MEASURED)
    us, stream = made.measure(choice.table_of({("tiny", 8): forms}), early=True)
    _, wanted = made.measure(MEASURED, early=False)
    assert us == 4.0
    assert product.relative_error(stream, wanted) < 4e-3
    assert before == MEASURED


def test_a_file_becomes_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    right = {
        checking.Candidate("tiny", name, 8, form)
        for name in product.PRODUCTS
        for form in (WIDE, Library(scaled=False))
    }
    out = tmp_path / "times.json"
    tuning = tuner.Tuning(right, float("inf"), out)
    tuning.time_products("tiny", 8)
    tuning.time_layers("tiny", 8)
    assert json.loads(out.read_text())["layers"][0]["new"]["layer_us"] == 4.0
    assert "tiny gated rows 8: today " in capsys.readouterr().out
    tuner.print_table(out)
    printed = capsys.readouterr().out
    assert '("gated", 256, 64): {' not in printed  # as fast as before
    assert '    ("head", 80, 64): {' in printed
    data = json.loads(out.read_text())
    data["layers"][0]["new, early"]["layer_us"] = 3.9
    out.write_text(json.dumps(data))
    tuner.print_table(out)
    printed = capsys.readouterr().out
    for line in (
        '    ("qkv", 6144, 4096): {',
        "        1: Tile(8, 256, 4, 4),",
        "        16: None,",
    ):
        assert line in printed.splitlines()
    assert '("gated", 256, 64): {' in printed
