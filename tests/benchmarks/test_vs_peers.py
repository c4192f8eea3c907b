"""The comparison from end to end, with engines that answer at once."""

import json
from pathlib import Path

import pytest
import vs_peers
from peers.options import parse
from peers.schedule import Cell

FAKE = Path(__file__).with_name("fake_engine.py")


def run(out: Path, *arguments: str) -> int:
    scripts = [f"--script={name}={FAKE}" for name in ("one", "two")]
    fixed = ["--models=tiny", "--engines=one,two", "--batches=1,8", f"--out={out}", *scripts]
    return vs_peers.main([*fixed, *arguments])


def samples(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "samples.json").read_text())
    return found


def test_all_cells_are_measured_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--cases=decode,mixed", "--rounds=2") == 0
    order = [(s["case"], s["engine"]) for s in samples(tmp_path)]
    cases = ["decode 1", "decode 8", "mixed"]
    assert order[:6] == [(case, engine) for case in cases for engine in ("one", "two")]
    assert order[6:] == [(case, engine) for case in cases for engine in ("two", "one")]
    # A step of the fake takes a millisecond, the first token included.
    assert all(s["value"] == pytest.approx(1.0) for s in samples(tmp_path) if s["case"] != "mixed")
    assert "| one | 1 | 1 | 1,000 |" in capsys.readouterr().out
    assert "| two | 1 | 1 | 1,000 |" in (tmp_path / "table.md").read_text()


def test_a_second_call_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    run(tmp_path, "--cases=decode", "--rounds=1")
    before = samples(tmp_path)
    run(tmp_path, "--cases=decode", "--rounds=1")
    assert samples(tmp_path) == before
    run(tmp_path, "--cases=decode", "--rounds=2")
    assert len(samples(tmp_path)) == 2 * len(before)


def test_without_time_nothing_is_measured_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--cases=decode", "--budget=0")
    assert not (tmp_path / "samples.json").exists()
    assert not list(tmp_path.glob("*.log"))  # nor was anything started
    assert "missing: tiny decode 1 one: no time left" in capsys.readouterr().out


def test_an_engine_that_fails_at_one_case_is_measured_at_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--cases=decode", "--rounds=1", "--batches=13,1")
    assert {s["case"] for s in samples(tmp_path)} == {"decode 1"}
    assert "missing: tiny decode 13 two: two tiny: thirteen is too many" in capsys.readouterr().out


def test_an_engine_that_does_not_start_leaves_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--cases=mixed", "--rounds=1", "--script=two=/nowhere.py")
    assert [s["engine"] for s in samples(tmp_path)] == ["one"]
    output = capsys.readouterr().out
    assert "two tiny: not measured" in output
    assert "missing: tiny mixed two: its engine is not loaded" in output


def test_the_cells_of_servers_name_the_way_in() -> None:
    options = parse("", ["--models=135m+8b", "--serve-models=135m", "--concurrency=64"])
    cells = options.cells(["135m", "8b"])
    assert [c.engine for c in cells if c.kind == "serve"] == [
        "pillion",
        "pillion over HTTP",
        "vllm over HTTP",
        "sglang over HTTP",
    ]
    # The small shape has no long prompts.
    assert Cell("135m", "prefill", "vllm") not in cells
    assert Cell("8b", "prefill", "vllm") in cells


def test_servers_may_be_of_other_engines_and_loaded_apart() -> None:
    arguments = ["--models=8b", "--cases=mixed,serve", "--concurrency=256"]
    options = parse("", [*arguments, "--serve-engines=pillion,vllm", "--apart"])
    engines, servers = vs_peers.groups(options)
    assert [cell.engine for cell in engines] == ["pillion", "vllm", "sglang"]
    assert [cell.engine for cell in servers] == ["pillion", "pillion over HTTP", "vllm over HTTP"]
    (together,) = vs_peers.groups(parse("", arguments))
    assert len(together) == 7


def test_what_was_measured_is_shown_though_the_run_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise SystemExit(143)

    run(tmp_path, "--cases=mixed", "--rounds=1")
    capsys.readouterr()
    monkeypatch.setattr(vs_peers.Rig, "measure", end)
    with pytest.raises(SystemExit):
        run(tmp_path, "--cases=mixed", "--rounds=2")
    assert "tiny mixed, tok/s: one 1,000/1, two 1,000/1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("--models=9b", "there is no shape 9b"),
        ("--cases=decode,lunch", "there is no case lunch"),
        ("--engines=three", "three is none of"),
    ],
)
def test_what_is_not_known_is_refused(
    argument: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("", [argument])
    assert word in capsys.readouterr().err


def test_the_cache_of_one_engine_may_differ() -> None:
    options = parse("", ["--kv-tokens=1000,sglang=2000"])
    assert options.kv_tokens == {"": 1000, "sglang": 2000}
