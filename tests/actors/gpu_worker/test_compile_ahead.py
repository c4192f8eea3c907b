"""Who compiles kernels before they are needed, and what is remembered of it."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_worker import tiny_config

from pillion.actors.gpu_worker import compile_ahead as module
from pillion.actors.gpu_worker import compile_part as part_module
from pillion.actors.gpu_worker.compile_ahead import (
    COMPILED,
    Compilation,
    check_ahead,
    compile_ahead,
    has_compiled,
)
from pillion.actors.gpu_worker.compile_part import compile_part, decode_sizes
from pillion.actors.gpu_worker.cuda_graphs import graph_sizes
from pillion.actors.gpu_worker.lone_tokens import LoneTokenExecutor
from pillion.actors.gpu_worker.model_executor import ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.models.loader import LoadedModel
from pillion.actors.gpu_worker.models.transformer import Transformer
from pillion.actors.gpu_worker.stages import Stages
from pillion.runtime.config import EngineConfig


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(model="tiny", **fields)


def process(code: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", f"from time import sleep; {code}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


COMPILES = f"print('{COMPILED}', flush=True)"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Command lines that were started, on a machine with a device and eight cores."""
    pytest.importorskip("triton")
    commands: list[list[str]] = []

    def popen(command: list[str], **_: Any) -> "subprocess.Popen[bytes]":
        commands.append(command)
        return process(COMPILES)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "DRIVER", tmp_path)
    monkeypatch.setattr(module, "free_memory_bytes", lambda: 1 << 40)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: range(8))
    fake = type("fake", (), {"Popen": popen, "PIPE": -1, "DEVNULL": -3})
    monkeypatch.setattr(module, "subprocess", fake)
    return commands


class TestCompileAhead:
    def test_each_process_gets_its_part(self, started: list[list[str]]) -> None:
        compilation = compile_ahead(config())
        assert compilation is not None
        compilation.wait()
        assert [command[-2:] for command in started] == [["7", str(part)] for part in range(7)]

    def test_what_is_compiled_need_not_be_compiled_to_be_checked(
        self, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: range(2))
        assert compile_ahead(config()) is None  # the one process would not be done before this one
        checks = check_ahead(config())
        assert checks is not None
        checks.wait()
        assert [command[-3:] for command in started] == [["tuning", "1", "0"]]
        assert not module._cache_dir().exists()
        assert check_ahead(config(device="cpu")) is None

    def test_there_are_as_many_as_fit_the_memory(
        self, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "free_memory_bytes", lambda: 5 << 30)
        compilation = compile_ahead(config())
        assert compilation is not None
        compilation.wait()
        assert len(started) == 2
        monkeypatch.setattr(module, "free_memory_bytes", lambda: 1 << 30)
        assert compile_ahead(config(max_num_seqs=8)) is None

    def test_a_second_start_finds_the_mark(self, started: list[list[str]]) -> None:
        compilation = compile_ahead(config())
        assert compilation is not None
        assert not has_compiled(config())
        compilation.wait()
        assert compile_ahead(config()) is None
        assert has_compiled(config())
        assert not has_compiled(config(max_num_seqs=8))
        other = compile_ahead(config(max_num_seqs=8))
        assert other is not None
        other.wait()

    def test_a_mark_is_of_a_shape_and_of_the_cards(
        self, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def start(name: str, hidden_size: int) -> bool:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            compilation = compile_ahead(tiny_config(folder, "auto", {"hidden_size": hidden_size}))
            if compilation is not None:
                compilation.wait()
            return compilation is not None

        monkeypatch.setattr(module, "_CARDS", tmp_path / "gpus")
        card = tmp_path / "gpus" / "0000:01:00.0"
        card.mkdir(parents=True)
        (card / "information").write_text("Model: \t\t A\nIRQ: 5\n")
        assert start("first", 48)
        assert not start("first", 48)
        assert not start("moved", 48)
        assert start("first", 96)  # another model in the same place
        (card / "information").write_text("Model: \t\t A\nIRQ: 6\n")
        assert not start("first", 96)
        (card / "information").write_text("Model: \t\t B\nIRQ: 6\n")
        assert start("first", 96)

    def test_a_batch_invariant_start_has_two_and_a_mark_of_its_own(
        self, started: list[list[str]]
    ) -> None:
        for fields, num_processes in (({"batch_invariant": True}, 2), ({}, 7)):
            compilation = compile_ahead(config(**fields))
            assert compilation is not None
            compilation.wait()
            assert len(started) == num_processes
            started.clear()
            assert compile_ahead(config(**fields)) is None

    def test_nothing_without_a_device(
        self, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert compile_ahead(config(device="cpu")) is None
        monkeypatch.setattr(module, "DRIVER", tmp_path / "none")
        assert compile_ahead(config()) is None
        assert not started


class TestDecodeSizes:
    @pytest.mark.parametrize("num_heads", [(32, 8), (32, 32), (40, 40), (71, 1), (20, 20)])
    @pytest.mark.parametrize("head_dim", [64, 128])
    @pytest.mark.parametrize("most", [1, 4, 64, 300])
    def test_any_number_of_rows_finds_its_kernel(
        self, num_heads: tuple[int, int], head_dim: int, most: int
    ) -> None:
        triton_decode = pytest.importorskip("pillion.kernels.paged_attention.triton_decode")
        num_q_heads, num_kv_heads = num_heads
        model: Any = SimpleNamespace(
            num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
        )
        sizes = decode_sizes(most, model)
        pairs = num_kv_heads * triton_decode.parts_of(num_q_heads // num_kv_heads)

        def kernels(counts: Iterable[int]) -> set[Any]:
            return {triton_decode.best_setting(count * pairs, head_dim) for count in counts}

        assert kernels(sizes) == kernels(range(1, most + 1))
        assert sizes[: len(graph_sizes(most))] == graph_sizes(most)
        assert len(sizes) == len({*sizes}) <= len(graph_sizes(most)) + 2


class TestParts:
    @pytest.mark.parametrize("part", [0, 1])
    def test_a_batch_invariant_engine_captures_nothing(
        self, part: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        built: list[Stages] = []
        steps: Counter[type[ModelExecutor]] = Counter()
        build, execute = Stages.build, ModelExecutor.execute

        def note_build(*arguments: Any, **named: Any) -> Stages:
            built.append(build(*arguments, **named))
            return built[-1]

        def note_step(self: ModelExecutor, *arguments: Any) -> ModelOutput:
            steps[type(self)] += 1
            return execute(self, *arguments)

        monkeypatch.setattr(Stages, "build", note_build)
        monkeypatch.setattr(ModelExecutor, "execute", note_step)
        monkeypatch.setattr(LoneTokenExecutor, "execute", note_step)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        said: list[str] = []
        compile_part(tiny_config(tmp_path, "cpu", batch_invariant=True), part, 2, said.append)
        assert [stages.capturer for stages in built] == [None, None]
        assert steps == {(ModelExecutor, LoneTokenExecutor)[part]: 2}
        assert said == [COMPILED]

    def test_layers_with_windows_and_without_are_both_there(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        windows: list[tuple[int | None, ...]] = []
        jobs = part_module._jobs

        def note(config: Any, device: Any, loaded: LoadedModel, num_weights: int) -> Any:
            windows.append(loaded.config.sliding_windows)
            return jobs(config, device, loaded, num_weights)

        monkeypatch.setattr(part_module, "_jobs", note)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        family = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
        sizes = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        for fields, expected in (({}, (None,)), (sizes, (None, 8))):
            config = tiny_config(tmp_path, "cpu", family | fields, batch_invariant=True)
            compile_part(config, 0, 2, lambda _: None)
            assert windows.pop() == expected

    @pytest.mark.parametrize("only_tuning", [True, False])
    def test_candidates_are_checked_behind_what_every_start_needs(
        self, only_tuning: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        said: list[str] = []

        def check(plan: Any, model: Any, part: int, num_parts: int, seconds: float, _: Any) -> None:
            said.append(f"{plan} {part} {num_parts} {seconds}")

        def compile_all(*_: Any) -> list[Any]:
            return [lambda: said.append("job")]

        monkeypatch.setattr(part_module, "tuning_left", lambda *_: "plan")
        monkeypatch.setattr(part_module, "check_part", check)
        monkeypatch.setattr(part_module, "_jobs", compile_all)
        monkeypatch.setattr(Transformer, "fused_layers", ["one"])
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        config = tiny_config(tmp_path, "cpu", tuning_seconds=4.0)
        compile_part(config, 0, 1, said.append, only_tuning=only_tuning)
        assert said == [*([] if only_tuning else ["job"]), COMPILED, "plan 0 1 3.0"]


class TestCompilation:
    def test_a_failure_leaves_no_mark(self, tmp_path: Path) -> None:
        mark = tmp_path / "cache" / "mark"
        Compilation([process(COMPILES), process("raise SystemExit(3)")], mark).wait()
        assert not mark.exists()
        Compilation([process(COMPILES)], mark).wait()
        assert mark.exists()

    def test_what_hangs_is_ended(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
        sleeper = process("sleep(60)")
        Compilation([sleeper], tmp_path / "mark").wait()
        assert sleeper.returncode is not None
        assert not (tmp_path / "mark").exists()

    def test_a_candidate_that_crashes_or_hangs_costs_its_process(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(module, "_GRACE_S", 0.3)
        processes = [
            process(f"{COMPILES}; print('0 right', flush=True); raise SystemExit(139)"),
            process(f"{COMPILES}; print('1 right', flush=True); sleep(60)"),
            process(f"{COMPILES}; print('2 off by 0.1'); print('5 right')"),
        ]
        mark = tmp_path / "mark"
        began = time.monotonic()
        said = Compilation(processes, mark, tuning_seconds=0.2).wait()
        assert time.monotonic() - began < 30
        assert sorted(said) == ["0 right", "1 right", "2 off by 0.1", "5 right"]
        assert mark.exists()

    def test_who_compiles_nothing_gives_no_candidate_more_time(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(module, "_GRACE_S", 0.3)
        processes = [
            process("raise SystemExit(3)"),
            process(f"{COMPILES}; print('1 right', flush=True); sleep(60)"),
        ]
        began = time.monotonic()
        said = Compilation(processes, tmp_path / "mark", tuning_seconds=0.2).wait()
        assert time.monotonic() - began < 30
        assert said == ["1 right"]
        assert not (tmp_path / "mark").exists()
