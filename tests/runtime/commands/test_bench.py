"""`pillion bench`: what it measures, and what it refuses before a daemon starts."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pillion.runtime.commands import bench
from pillion.runtime.errors import ConfigError
from pillion.runtime.process import child_environment


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--repeats 0", "--repeats must be at least 1, got 0"),
        ("--requests 0", "--requests must be at least 1"),
        ("--input-len -1", "--input-len must be at least 1"),
        ("--output-len 0", "--output-len must be at least 1"),
        ("--shortest 0", "--shortest must be at least 1"),
        ("--shortest 9 --longest 8", "--shortest is 9, which is above --longest, 8"),
        ("--seconds nan", "--seconds must be above 0"),
        ("--batch 1,x", "--batch takes sizes such as 1,8,32"),
        ("--json /nowhere/r.json", "/nowhere/r.json cannot be written: there is no directory"),
        ("--plot /nowhere/r.png", "/nowhere/r.png cannot be written"),
    ],
)
def test_impossible_numbers_are_refused_by_name(
    flags: str, message: str, runtime_root: Path
) -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(ConfigError, match=message):
        bench.run(parser.parse_args(["latency", "--model", "m", *flags.split()]))
    assert list(runtime_root.iterdir()) == []


def test_a_picture_without_its_library_is_refused(
    runtime_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(ConfigError, match=r"pip install 'pillion\[plot\]'"):
        bench.run(parser.parse_args(["idle", "--plot", str(tmp_path / "r.png")]))
    assert list(runtime_root.iterdir()) == []


def measure(case: str, flags: str, model: Path, file: Path) -> tuple[str, dict[str, Any]]:
    """What the command prints and what it writes."""
    command = [sys.executable, "-m", "pillion", "bench", case, "--model", str(model)]
    command += ["--cpu-threads", "1", "--json", str(file), *flags.split()]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


@pytest.mark.model
@pytest.mark.parametrize(
    ("case", "flags", "first_cells", "share"),
    [
        ("latency", "--batch 1,2 --input-len 8 --output-len 8 --repeats 1", [1, 2], True),
        ("throughput", "--requests 3 --shortest 4 --longest 8 --repeats 1", [0], True),
        ("startup", "--repeats 1", [0], False),
        ("ring", "--requests 5", ["client to first token", "worker's step", "everything else"], False),
        ("idle", "--seconds 0.5", ["launcher", "kv_manager", "scheduler", "detokenizer", "gpu_worker", "all"], False),
    ],
)  # fmt: skip
def test_measurements(
    case: str,
    flags: str,
    first_cells: list[Any],
    share: bool,
    smollm2_path: Path,
    runtime_root: Path,
    tmp_path: Path,
) -> None:
    printed, written = measure(case, flags, smollm2_path, tmp_path / "r.json")
    rows = [dict(zip(written["columns"], row, strict=True)) for row in written["rows"]]
    assert sorted(map(str, (row[written["columns"][0]] for row in rows))) == sorted(
        map(str, first_cells)
    )
    assert written["title"].startswith(case[:5])
    assert printed.splitlines()[0] == written["title"]
    assert all(str(cell) in printed for cell in first_cells)
    if (
        share
    ):  # of what the device reaches alone; what is measured for moments may seem to be beyond
        assert all(0 < row["share of limit"] < 2 for row in rows)
        assert written["limits"]["read_bytes_per_s"] > 1e8
        assert "GB/s" in printed
    if case == "startup":
        assert 0 < rows[0]["ready s"] < rows[0]["first token s"]
        assert written["phases_ms"]["gpu_worker: weights"][0] > 0
    if case == "ring":
        assert rows[2]["median ms"] > 0
    assert list(runtime_root.iterdir()) == []
