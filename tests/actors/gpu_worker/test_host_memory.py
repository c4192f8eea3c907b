"""How much memory is left to this process."""

from pathlib import Path

import pytest

from pillion.actors.gpu_worker import host_memory
from pillion.actors.gpu_worker.host_memory import free_memory_bytes


def test_what_is_free_is_a_plausible_number() -> None:
    assert 1 << 20 < free_memory_bytes() < 1 << 50


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("1000000\n", "400000\n", 600_000), ("100\n", "200\n", 0)],
)
def test_a_control_group_may_allow_less(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    used: str,
    expected: int,
) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    assert free_memory_bytes() == expected


def test_a_group_without_limit_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    assert free_memory_bytes() > 1 << 20
