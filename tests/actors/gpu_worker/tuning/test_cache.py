"""What later starts find, and what they make of files that are not as they should be."""

import json
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from untuned_models import A100, plan_for

from pillion.actors.gpu_worker.tuning import cache as module
from pillion.actors.gpu_worker.tuning.cache import Chosen, Tuned, read_tuned, write_tuned
from pillion.actors.gpu_worker.tuning.plan import TuningPlan
from pillion.runtime.paths import cache_root


def outcome(plan: TuningPlan) -> Tuned:
    """The last form of each product, asking for some of the weight ahead where that is possible."""
    chosen: Chosen = {}
    for product in plan.products:
        for rows in plan.row_classes:
            choice = plan.forms(product, rows)[-1].choice
            if choice is not None:
                choice = choice._replace(prefetch_bytes=512)
            chosen[product.name, rows] = choice
    return Tuned(chosen, {1: (50.0, 40.5)})


def the_file() -> Path:
    (path,) = (cache_root() / "tuning").iterdir()
    return path


def test_what_is_written_is_read(plan: TuningPlan) -> None:
    assert read_tuned(plan, 20.0) is None
    tuned = outcome(plan)
    write_tuned(plan, tuned)
    assert read_tuned(plan, 20.0) == tuned
    assert the_file().stat().st_mode & 0o077 == 0


def test_other_models_cards_and_kernels_have_their_own(
    plan: TuningPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tuned(plan, outcome(plan))
    for other in (plan_for(max_num_seqs=16), plan_for(card=A100, max_num_seqs=8)):
        assert other is not None
        assert read_tuned(other, 20.0) is None
    monkeypatch.setattr(module, "_source_digest", lambda: "other kernels")
    assert read_tuned(plan, 20.0) is None


def test_every_change_of_a_kernel_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digests = []
    for text in ("x = 1", "x = 2"):
        home = tmp_path / "pillion"
        (home / "kernels" / "op").mkdir(parents=True, exist_ok=True)
        (home / "kernels" / "op" / "triton_impl.py").write_text(text)
        monkeypatch.setattr(module.pillion, "__file__", str(home / "__init__.py"))
        module._source_digest.cache_clear()
        digests.append(module._source_digest())
    module._source_digest.cache_clear()
    assert digests[0] != digests[1]


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"[]", b"{}", b'{"key": 1, "chosen": []}'])
def test_a_damaged_file_is_made_anew(
    plan: TuningPlan, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    tuned = outcome(plan)
    write_tuned(plan, tuned)
    the_file().write_bytes(content)
    assert read_tuned(plan, 20.0) is None
    assert "anew" in caplog.text
    write_tuned(plan, tuned)
    assert read_tuned(plan, 20.0) == tuned


@pytest.mark.parametrize(
    ("name", "value"),
    [("form", {"type": "Tile", "block_n": 3}), ("rows", 7), ("product", "other"), ("form", 5)],
)
def test_a_form_that_nobody_would_try_is_not_used(
    plan: TuningPlan, name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    write_tuned(plan, outcome(plan))
    data = json.loads(the_file().read_text())
    data["chosen"][0]["form"] = None
    data["chosen"][0][name] = value
    the_file().write_text(json.dumps(data))
    assert read_tuned(plan, 20.0) is None
    assert "is damaged or not ours" in caplog.text


def test_a_file_of_another_key_is_not_ours(
    plan: TuningPlan, caplog: pytest.LogCaptureFixture
) -> None:
    write_tuned(plan, outcome(plan))
    data = json.loads(the_file().read_text())
    data["key"]["triton"] = "0.1"
    the_file().write_text(json.dumps(data))
    assert read_tuned(plan, 20.0) is None
    assert "another model, card or version" in caplog.text


def test_a_tuning_that_was_too_short_counts_until_there_is_more_time(plan: TuningPlan) -> None:
    tuned = replace(outcome(plan), short_s=20.0)
    write_tuned(plan, tuned)
    assert read_tuned(plan, 20.0) == tuned
    assert read_tuned(plan, 10.0) == tuned
    assert read_tuned(plan, 60.0) is None


def test_a_cache_that_cannot_be_written_warns(
    plan: TuningPlan,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(module.os, "replace", refuse)
    write_tuned(plan, outcome(plan))
    assert "the next start tunes again" in caplog.text
    assert not list((cache_root() / "tuning").iterdir())
    caplog.clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert read_tuned(plan, 20.0) is None
        write_tuned(plan, outcome(plan))
    assert caplog.text.count("tuned kernels cannot be") == 2


def test_several_that_write_at_once_leave_a_whole_file(plan: TuningPlan) -> None:
    tuned = outcome(plan)
    write_tuned(plan, tuned)
    found: list[Tuned | None] = []

    def work() -> None:
        for _ in range(20):
            write_tuned(plan, tuned)
            found.append(read_tuned(plan, 20.0))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tuned] * 60
    assert len(os.listdir(cache_root() / "tuning")) == 1
