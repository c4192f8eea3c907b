"""Classes of numbers of rows, and which measurement each takes its forms from."""

import pytest

from pillion.actors.gpu_worker.cuda_graphs import graph_sizes
from pillion.kernels.fused_linear import tiles
from pillion.kernels.fused_linear.tiles import (
    MEASURED,
    Choice,
    Kind,
    Tile,
    WideTile,
    choose,
    padded_rows,
    trying,
)

SHAPE: tuple[Kind, int, int] = ("gated", 8192, 4096)
HALF, WHOLE, OTHER = (WideTile(64, 64, 4, 4, 1, rows) for rows in (64, 256, 32))


def test_classes_are_captured_steps_and_hardly_larger_than_what_they_take() -> None:
    classes = {padded_rows(rows) for rows in range(1, 257)}
    assert classes < set(graph_sizes(256))
    for rows in range(1, 2000):
        padded = padded_rows(rows)
        assert rows <= padded == padded_rows(padded)
        assert rows == 1 or padded - rows < max(7, 16 if rows <= 64 else 32) or rows > 256
    assert [padded_rows(rows) for rows in (2, 8, 9, 33, 129, 225, 257, 1024)] == [
        *(8, 8, 16, 48, 160, 256, 512, 1024)
    ]


def forms_of(rows: range) -> set[Choice]:
    return {choose(*SHAPE, num_rows) for num_rows in rows}


def test_a_class_that_was_not_measured_takes_a_larger_ones_forms_or_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = {32: None, 64: HALF, 128: HALF, 256: WHOLE}
    monkeypatch.setattr(tiles, "MEASURED", {SHAPE: measured})
    assert forms_of(range(33, 129)) == {HALF}
    assert forms_of(range(129, 225)) == {None}
    assert forms_of(range(225, 257)) == {WHOLE}
    monkeypatch.setattr(tiles, "MEASURED", {SHAPE: {**measured, 48: None, 160: OTHER}})
    assert forms_of(range(33, 49)) == {None}
    assert forms_of(range(49, 65)) == {HALF}
    assert forms_of(range(129, 161)) == {OTHER}
    with trying({SHAPE: {64: OTHER}}):  # of this very device
        assert forms_of(range(33, 65)) == {OTHER}


def test_tiles_take_all_rows_of_their_class_without_many_more() -> None:
    for shape, measured in MEASURED.items():
        for rows, form in measured.items():
            assert rows == padded_rows(rows), shape
            if isinstance(form, Tile | WideTile):
                taken = -(-rows // form.block_rows) * form.block_rows
                assert rows == 1 or taken <= max(64, 2 * rows), shape
