"""The choice among forms, with times that the test has made up."""

import logging
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from fake_bench import FakeBench

from pillion.actors.gpu_worker.tuning.cache import Tuned
from pillion.actors.gpu_worker.tuning.forms import Form
from pillion.actors.gpu_worker.tuning.plan import Candidate, Product, TuningPlan
from pillion.actors.gpu_worker.tuning.tuner import table_of, tune
from pillion.kernels.fused_linear.tiles import MEASURED, Table, Tile


def run(
    plan: TuningPlan, bench: FakeBench, wrong: Callable[[Candidate], bool] | None = None
) -> Tuned:
    right = {each for each in plan.candidates() if wrong is None or not wrong(each)}
    tuned, is_complete = tune(plan, right, bench, lambda: False)
    assert is_complete
    return tuned


def product(plan: TuningPlan, name: str) -> Product:
    return next(product for product in plan.products if product.name == name)


def forms(plan: TuningPlan, name: str, rows: int) -> list[Form]:
    return plan.forms(product(plan, name), rows)


def test_the_fastest_form_is_chosen_and_more_asked_for_ahead(plan: TuningPlan) -> None:
    fast = forms(plan, "output", 1)[-1]
    assert fast.choice is not None
    ahead = fast.choice._replace(prefetch_bytes=512)
    times = {fast.choice: 5.0, ahead: 4.0}

    def us(candidate: Candidate) -> float:
        return (
            times.get(candidate.form.choice, 10.0) if candidate.product.name == "output" else 10.0
        )

    tuned = run(plan, FakeBench(us))
    assert tuned.chosen["output", 1] == ahead
    assert tuned.layer_us == {1: (50.0, 40.0), 8: (50.0, 40.0)}
    table = table_of(plan, tuned.chosen)
    output = product(plan, "output")
    assert table["add", output.n, output.k][1] == ahead
    assert set(table["head", 151_936, 1536]) == {1, 8}


@pytest.mark.parametrize("tile_us", [3.0, 10.0])
def test_who_writes_the_stream_leaves_it_as_its_reader_wants_it(
    plan: TuningPlan, tile_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for (kind, _, _), measured in MEASURED.items():
        if kind == "gated":
            monkeypatch.setitem(measured, 8, Tile(32, 128, 2, 4))
    wide = next(form for form in forms(plan, "output", 8) if form.scaled)

    def us(candidate: Candidate) -> float:
        name, form = candidate.product.name, candidate.form
        if name == "output":
            return 5.0 if form.choice == wide.choice else 6.0
        return tile_us if name == "gated" and isinstance(form.choice, Tile) else 10.0

    chosen = run(plan, FakeBench(us)).chosen
    # A fast tile behind the norm wants the stream as it is, which the fastest writer would not leave.
    reader_wins = tile_us == 3.0
    assert (chosen["output", 8] == wide.choice) == (not reader_wins)
    assert isinstance(chosen["gated", 8], Tile) == reader_wins


def test_what_is_wrong_or_cannot_run_is_not_chosen(
    plan: TuningPlan, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, broken = forms(plan, "head", 1)[-1], forms(plan, "head", 1)[-2]

    def us(candidate: Candidate) -> float:
        if candidate.form == broken:
            raise RuntimeError("out of resources")
        return 1.0 if candidate.form == wrong else 10.0

    bench = FakeBench(us)
    with caplog.at_level(logging.INFO):
        tuned = run(plan, bench, wrong=lambda each: each.form == wrong)
    assert tuned.chosen["head", 1] not in (wrong.choice, broken.choice)
    assert not any(each.form == wrong and each.product.name == "head" for each in bench.timed)
    assert "head of 1 rows cannot run" in caplog.text


def test_nothing_right_leaves_everything_untuned(plan: TuningPlan) -> None:
    bench = FakeBench()
    assert run(plan, bench, wrong=lambda each: True) == Tuned({}, {})
    assert not bench.timed
    assert not bench.compared


@pytest.mark.parametrize(
    "layers", [(50.0, 51.0, 0.004), (50.0, 10.0, 0.2), (50.0, 10.0, float("nan"))]
)
def test_layers_that_are_slower_or_wrong_stay_untuned(
    plan: TuningPlan, layers: tuple[float, float, float]
) -> None:
    tuned = run(plan, FakeBench(layers=layers))
    assert {name for name, _ in tuned.chosen} == {"head"}
    assert tuned.layer_us[8] == (50.0, 50.0)


def test_layers_that_cannot_run_stay_untuned(
    plan: TuningPlan, caplog: pytest.LogCaptureFixture
) -> None:
    class NoRoom(FakeBench):
        def compare_layers(self, rows: int, table: Table) -> tuple[float, float, float]:
            raise RuntimeError("out of memory")

    tuned = run(plan, NoRoom())
    assert {name for name, _ in tuned.chosen} == {"head"}
    assert tuned.layer_us == {}
    assert "8 rows stay untuned" in caplog.text


def test_time_that_is_over_leaves_the_rest_untuned(plan: TuningPlan) -> None:
    calls: Iterator[int] = count()
    bench = FakeBench()
    tuned, is_complete = tune(plan, plan.candidates(), bench, lambda: next(calls) >= 1)
    assert not is_complete
    assert {rows for _, rows in tuned.chosen} == {plan.row_classes[0]}
    tuned, is_complete = tune(plan, plan.candidates(), bench, lambda: True)
    assert (tuned, is_complete) == (Tuned({}, {}), False)
