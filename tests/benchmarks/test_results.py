"""Samples on disk, medians, ratios and the table."""

from pathlib import Path

import pytest
from peers.results import Samples, lines, medians, plot, ratio, table


def filled(folder: Path) -> Samples:
    samples = Samples(folder, "here")
    for value in (4.0, 9.0, 5.0):
        samples.add(("8b", "decode 1", "pillion"), value, "ms/token", {})
    for engine, value in (("vllm", 6.0), ("sglang", 5.5)):
        samples.add(("8b", "decode 1", engine), value, "ms/token", {})
    samples.add(("8b", "serve 64", "pillion"), 3000.0, "tok/s", {})
    samples.add(("8b", "serve 64", "pillion over HTTP"), 2000.0, "tok/s", {})
    samples.add(("8b", "serve 64", "vllm over HTTP"), 1000.0, "tok/s", {})
    samples.add(("8b", "mixed", "pillion"), 7.0, "tok/s", {})
    return samples


def test_a_median_is_taken_per_cell(tmp_path: Path) -> None:
    assert medians(filled(tmp_path).here())["8b", "decode 1", "pillion"] == 5.0


def test_a_ratio_above_one_is_better_than_the_best_other_whatever_the_unit(tmp_path: Path) -> None:
    samples = filled(tmp_path).here()
    assert ratio("8b", "decode 1", "pillion", samples) == pytest.approx(5.5 / 5.0)
    assert ratio("8b", "serve 64", "pillion", samples) == pytest.approx(3.0)
    assert ratio("8b", "serve 64", "pillion over HTTP", samples) == pytest.approx(2.0)


def test_there_is_no_ratio_without_another_engine(tmp_path: Path) -> None:
    samples = filled(tmp_path).here()
    assert ratio("8b", "mixed", "pillion", samples) is None
    assert ratio("1b", "mixed", "pillion", samples) is None


def test_the_table_shows_medians_ratios_and_what_is_missing(tmp_path: Path) -> None:
    lines = table(filled(tmp_path).here()).splitlines()
    assert lines[0] == "| 8b | decode 1, ms/token | serve 64, tok/s | mixed, tok/s |"
    assert "| pillion | 5 | 3,000 | 7 |" in lines
    assert "| sglang | 5.5 | - | - |" in lines
    assert "| pillion: times the best other | 1.10 x | 3.00 x | - |" in lines
    assert "| pillion over HTTP: times the best other | - | 2.00 x | - |" in lines
    assert "{'decode 1': 1, 'serve 64': 1, 'mixed': 1}" in lines[-1] + lines[-2]


def test_a_line_per_cell_says_how_many_samples_there_are(tmp_path: Path) -> None:
    found = lines(filled(tmp_path).here()).splitlines()
    assert found == [
        "8b decode 1, ms/token: pillion 5/3, vllm 6/1, sglang 5.5/1, 1.10 x",
        "8b serve 64, tok/s: pillion 3,000/1, pillion over HTTP 2,000/1, vllm over HTTP 1,000/1, 3.00 x, 2.00 x",
        "8b mixed, tok/s: pillion 7/1",
    ]


def test_samples_survive_and_other_machines_do_not_count(tmp_path: Path) -> None:
    filled(tmp_path)
    cell = ("8b", "decode 1", "pillion")
    assert [s.value for s in Samples(tmp_path, "here").of(cell)] == [4.0, 9.0, 5.0]
    elsewhere = Samples(tmp_path, "elsewhere")
    assert elsewhere.of(cell) == []
    assert elsewhere.here() == []
    elsewhere.add(cell, 1.0, "ms/token", {})
    assert len(Samples(tmp_path, "here").of(cell)) == 3


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(filled(tmp_path).here(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
