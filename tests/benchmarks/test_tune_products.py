"""The tuner of the decode products: a tiny model in Triton's interpreter, and what is chosen from given times."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from products import candidates, checking, choice, descent, layers, product, tuning
from products.descent import Descent, LayerForms
from products.product import Form, Library, Product, Shape

from pillion.kernels.fused_linear import wide_impl
from pillion.kernels.fused_linear.tiles import MEASURED, Tile, WideTile
from pillion.kernels.paged_attention import triton_decode

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
TINY = Shape(64, 2, 1, 32, 128, 2, 80)
WIDE = WideTile(16, 64, 4, 2, 2, 8)
EQUAL = WideTile(16, 64, 4, 2, 1, 8, programs=3)
NARROW = Tile(16, 64, 4, 2)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_once(run: Callable[[], object], repeats: int = 5) -> float:
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
@pytest.mark.parametrize("form", [WIDE, EQUAL, NARROW, Library(scaled=False), Library(scaled=True)])
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
    groups = checking.candidates(["8b", "1b", "135m"], [1, *candidates._BLOCK_ROWS])
    wide = [c for group in groups for c in group if isinstance(c.form, WideTile)]
    products = {(c.shape, c.name, c.rows) for c in wide}
    assert len(products) == 3 * 5 * 11  # each model and product, each number of rows beyond one
    for c in wide:
        assert isinstance(c.form, WideTile)
        tiles = c.form.block_n * (2 if c.name == "gated" else 1) + c.form.block_rows
        assert tiles * c.form.block_k * 2 * c.form.stages < candidates.SHARED_BYTES
        if c.form.programs > 0:  # as many as there is room for, and each has more than one step
            assert c.form.splits == 1
            assert c.form.programs <= 2 * candidates.MULTIPROCESSORS
    assert {c.rows for c in wide if isinstance(c.form, WideTile) and c.form.programs} == {
        *(8, 16, 32, 48, 64, 96, 128)
    }
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
    forms = LayerForms(WIDE, EQUAL, EQUAL._replace(early=False), NARROW).products()
    before = dict(MEASURED)
    us, stream = made.measure(choice.table_of({("tiny", 8): forms}), early=True)
    _, wanted = made.measure(MEASURED, early=False)
    assert us == 4.0
    assert product.relative_error(stream, wanted) < 4e-3
    assert before == MEASURED


def test_attention_is_early_or_late_as_told() -> None:
    as_usual = triton_decode.best_setting
    for rows, is_early in ((8, False), (40, True)):
        assert layers.Layers(TINY, rows, num_layers=2).attention_early == is_early
        for early in (False, True):
            with layers.settings(MEASURED, early=early):
                assert triton_decode.best_setting(rows, 32).early == early
    assert triton_decode.best_setting is as_usual


LATE = WIDE._replace(early=False)
# What a product takes alone.
ALONE: dict[str, dict[Form, float]] = {
    "qkv": {WIDE: 3.8, EQUAL: 4.0, Library(scaled=False): 9.0},
    "output": {NARROW: 3.8, WIDE: 4.0},
    "gated": {WIDE: 6.0, WIDE._replace(prefetch_bytes=256): 6.5, EQUAL: 6.7},
    "down": {WIDE: 5.0, NARROW: 5.5},
}
AHEAD = NARROW._replace(prefetch_bytes=256)
BEST = LayerForms(LATE, WIDE, EQUAL, AHEAD, attention_early=True)


def test_finalists_are_of_every_kind_but_not_much_slower() -> None:
    wide = [WIDE._replace(stages=stages) for stages in range(2, 7)]
    times: dict[Form, float] = {form: 10.0 + i / 10 for i, form in enumerate(wide)}
    times |= {
        WIDE._replace(prefetch_bytes=256): 9.9,  # in place of itself
        EQUAL: 11.0,
        NARROW: 11.4,
        Library(scaled=True): 12.0,
    }
    best = WIDE._replace(prefetch_bytes=256)
    assert descent.finalists(times) == [best, *wide[1:3], EQUAL]


def layer_us(forms: LayerForms) -> float:
    """Alone, a wide output or an equal gated product makes it slower."""
    wide, equal = isinstance(forms.output, WideTile), forms.gated == EQUAL
    us = 20.0 + (wide != equal) - 2.0 * (wide and equal)
    us -= (forms.qkv == LATE) + 0.5 * (forms.down in (NARROW, AHEAD)) + 0.3 * (forms.down == AHEAD)
    return us - 0.25 * forms.attention_early


def test_layers_are_changed_until_nothing_is_gained() -> None:
    found = Descent(layer_us, lambda: False)
    ways = descent.coordinates(ALONE, 1.0, "tiny")
    slow, start = LayerForms(None, WIDE, None, None), LayerForms(WIDE, NARROW, WIDE, WIDE)
    assert found.run([slow, start], ways) == BEST
    assert found.us(BEST) == min(found.times.values())
    assert len(found.times) < 150
    # Without time the better start is what there is.
    assert Descent(layer_us, lambda: True).run([slow, start], ways) == start


def test_less_than_chance_is_no_gain() -> None:
    times = {WIDE: 100.0, NARROW: 99.9, None: 99.7}
    found = Descent(lambda forms: times[forms.gated], lambda: False)  # type: ignore[index]
    start = LayerForms(None, None, WIDE, None)
    for choices, want in (((WIDE, NARROW), WIDE), ((NARROW, None), None)):

        def others(
            forms: LayerForms, choices: tuple[choice.Choice, ...] = choices
        ) -> list[LayerForms]:
            return [forms._replace(gated=choice) for choice in choices]

        assert found.run([start], [others]).gated == want


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
    names = list(product.PRODUCTS)
    timed = tuning.Tuning(names, right, float("inf"), 0, out)
    timed.time_products("tiny", 8)
    timed.time_layers("tiny", 8)
    found = json.loads(out.read_text())["layers"][0]
    assert found["today_us"] == found["chosen_us"] == 4.0
    assert found["error"] < tuning._LARGEST_ERROR
    said = capsys.readouterr().out
    assert "tiny 8 products: qkv " in said
    assert "tiny 8 layer: today 4.00 us" in said
    tuning.print_table([out])
    printed = capsys.readouterr().out
    assert '("gated", 256, 64): {' not in printed  # as fast as before
    assert '    ("head", 80, 64): {' in printed
    data = json.loads(out.read_text())
    data["layers"][0] |= {"chosen_us": 3.995, "attention_early": True}
    data["chosen"][0]["forms"]["gated"] = choice.to_json(EQUAL)
    out.write_text(json.dumps(data))
    tuning.print_table([out])
    assert '("gated", 256, 64): {' not in capsys.readouterr().out  # which is chance
    data["layers"][0] |= {"chosen_us": 3.9}
    out.write_text(json.dumps(data))
    other = tmp_path / "other.json"
    data["chosen"][0] |= {"rows": 48, "forms": {"head": choice.to_json(NARROW)}}
    other.write_text(json.dumps(data))
    tuning.print_table([out, other])
    printed = capsys.readouterr().out
    assert "        48: Tile(16, 64, 4, 2)," in printed.splitlines()
    for line in (
        '    ("qkv", 6144, 4096): {',
        "        1: Tile(8, 256, 4, 4),",
        "        16: None,",
        "        8: WideTile(16, 64, 4, 2, 1, 8, 0, True, 3),",
        "# early attention: tiny with 8 rows",
    ):
        assert line in printed.splitlines()
    assert '("gated", 256, 64): {' in printed
