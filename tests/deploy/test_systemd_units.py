"""What systemd itself says of the units in deploy/systemd. Skipped where its tools are missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
ANALYZE = shutil.which("systemd-analyze")
# Of 100, with room for what other versions of systemd look at; without its hardening the unit has 85. What is left
# is what the daemon needs: sockets, devices of CUDA, code made at run time.
MAX_EXPOSURE = 30

pytestmark = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")


def analyze(*arguments: str, units: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ANALYZE), *arguments],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:", "SYSTEMD_COLORS": "0"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with a command that this machine has."""
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/opt/pillion/bin/pillion", str(shutil.which("true")))
        (tmp_path / unit.name).write_text(text)
    return tmp_path


def complaints(units: Path) -> list[str]:
    """What is said of our units; those of the machine may have faults of their own."""
    paths = [str(path) for path in sorted(units.iterdir())]
    said = analyze("verify", "--man=no", *paths, units=units).stderr
    return [line for line in said.splitlines() if "pillion" in line]


def test_the_units_are_without_fault(units: Path) -> None:
    assert complaints(units) == []


@pytest.mark.parametrize("line", ["NoSuchDirective=yes", "WatchdogSec=often", "KillMode=gently"])
def test_a_fault_would_be_found(units: Path, line: str) -> None:
    service = units / "pillion.service"
    service.write_text(service.read_text().replace("[Service]\n", f"[Service]\n{line}\n"))
    assert complaints(units)


def test_the_service_is_exposed_as_little_as_it_can_be(units: Path) -> None:
    service = str(units / "pillion.service")
    help_text = analyze("security", "--help", units=units).stdout
    if "--offline" not in help_text:
        pytest.skip("this systemd-analyze judges running services only")
    result = analyze(
        "security",
        "--offline=true",
        f"--threshold={MAX_EXPOSURE}",
        "--no-pager",
        service,
        units=units,
    )
    assert result.returncode == 0, result.stdout
