"""Which graph is captured when, by a capturer that only notes it; and what that does to a worker's steps."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from pillion.actors.gpu_worker import late_graphs as module
from pillion.actors.gpu_worker.cuda_graphs import GraphCapturer, mixed_shapes
from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.mixed_table import GraphSize, MixedShape
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.start_up import capture_steps
from pillion.messages.control import Shutdown
from pillion.runtime.clock import NS_PER_MS, now_ns

SMALL, MEDIUM, LARGE = MixedShape(256, 16, 8), MixedShape(512, 16, 8), MixedShape(1024, 40, 16)
SIZES: tuple[GraphSize, ...] = (4, 8, 16, 32, 40, SMALL, MEDIUM, LARGE)
QUIET, PERIOD = 100 * NS_PER_MS, 500 * NS_PER_MS
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB\nmore of it")


class FakeCapturer:
    """Has captured what a start does."""

    def __init__(self, left: Sequence[GraphSize] = (16, 32, 40, MEDIUM, LARGE)) -> None:
        self.sizes: Sequence[GraphSize] = SIZES
        self.left: list[GraphSize] = [*left]
        self.captured: list[GraphSize] = []
        self.error: Exception | None = None

    def capture(self, size: GraphSize) -> None:
        if self.error is not None:
            raise self.error
        self.left.remove(size)
        self.captured.append(size)

    def capture_first(self) -> None:
        for size in (4, 8, SMALL):
            self.capture(size)

    def capture_all(self) -> None:
        for size in [*self.left]:
            self.capture(size)


class FakeMeter:
    """Each capture takes 10 bytes, and what was before it 100."""

    def __init__(self) -> None:
        self.taken_bytes = 100
        self.num_told = 0

    def measure(self, capture: Callable[[], None]) -> None:
        capture()
        self.taken_bytes += 10

    def warn_if_more(self) -> None:
        self.num_told += 1


@pytest.fixture
def capturer() -> FakeCapturer:
    return FakeCapturer()


@pytest.fixture
def meter() -> FakeMeter:
    return FakeMeter()


@pytest.fixture
def late(capturer: FakeCapturer, meter: FakeMeter) -> LateGraphs:
    return LateGraphs(capturer, meter)


def rows(num_decode: int, *prompts: int) -> PlanRows:
    starts = np.zeros(len(prompts), dtype=np.int64)
    slots = np.arange(num_decode + len(prompts), dtype=np.int32)
    return PlanRows(slots[:num_decode], slots[num_decode:], starts, starts + prompts)


def asking(step: PlanRows) -> PlanRows:
    """For log-probabilities of prompts."""
    return replace(step, asks_prompt_logprobs=True)


class TestIdle:
    def test_one_graph_a_turn_when_it_has_been_quiet_for_a_while(
        self, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        assert late.when_idle(1000) == 1000 + QUIET
        assert late.when_idle(999 + QUIET) == 1000 + QUIET
        assert not capturer.captured
        now = 1000 + QUIET
        for num_captured in range(1, 5):
            assert late.when_idle(now) == now
            assert len(capturer.captured) == num_captured
            now += 30
        assert late.when_idle(now) is None
        assert capturer.captured == [16, 32, 40, MEDIUM, LARGE]
        assert late.when_idle(now + 1) is None

    def test_a_step_begins_the_quiet_time_anew(
        self, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        late.when_idle(0)
        late.before_step(rows(3), QUIET, may_wait=True)
        assert late.when_idle(QUIET + 5) == 2 * QUIET + 5
        assert not capturer.captured


class TestSteps:
    @pytest.mark.parametrize(
        ("step", "needed"),
        [
            (rows(8), []),
            (rows(9), [16]),
            (rows(17), [32]),
            (rows(40), [40]),
            (rows(8, 100, 100), []),
            (rows(8, 300), [MEDIUM]),
            (rows(8, *[20] * 9), [LARGE]),
            (rows(1, 1100), []),  # there will be none
            (asking(rows(1, 300)), []),
        ],
    )
    def test_what_no_graph_has_room_for_is_captured_at_once(
        self, step: PlanRows, needed: list[GraphSize], late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        for _ in range(2):
            late.before_step(step, 0, may_wait=False)
            assert capturer.captured == needed

    def test_a_larger_one_will_do_and_its_own_is_the_next(
        self, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        late.before_step(rows(33), 0, may_wait=False)
        late.before_step(rows(20), 1, may_wait=False)
        late.before_step(rows(1, 1000), 2, may_wait=False)
        late.before_step(rows(1, 500), 3, may_wait=False)
        assert capturer.captured == [40, LARGE]
        assert capturer.left == [MEDIUM, 32, 16]
        for now in (0, QUIET, QUIET, QUIET):
            late.when_idle(now)
        assert capturer.captured == [40, LARGE, MEDIUM, 32, 16]

    def test_under_load_there_is_one_in_half_a_second(
        self, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        def run(milliseconds: int, may_wait: bool) -> list[int]:
            """Every ms a step; when something was captured."""
            found = []
            for ms in range(milliseconds):
                before = len(capturer.captured)
                late.before_step(rows(2), 7 + ms * NS_PER_MS, may_wait=may_wait)
                found += [ms] * (len(capturer.captured) - before)
            return found

        assert run(800, may_wait=False) == []
        assert run(5000, may_wait=True) == [500, 1000, 1500, 2000, 2500]
        assert capturer.captured == [16, 32, 40, MEDIUM, LARGE]


class TestWhatIsTold:
    def test_how_many_there_are_and_what_they_take(
        self, late: LateGraphs, capturer: FakeCapturer, meter: FakeMeter
    ) -> None:
        assert late.gauges == {"graphs": 3, "graphs_left": 5, "graphs_bytes": 100}
        gauges = late.gauges
        late.before_step(rows(9), 0, may_wait=False)
        assert gauges == {"graphs": 4, "graphs_left": 4, "graphs_bytes": 110}
        while late.when_idle(QUIET) is not None:
            assert meter.num_told == 0
            late.when_idle(2 * QUIET)
        assert gauges == {"graphs": 8, "graphs_left": 0, "graphs_bytes": 150}
        assert meter.num_told == 1

    def test_a_start_that_has_captured_all_is_told_of_at_once(self, meter: FakeMeter) -> None:
        late = LateGraphs(FakeCapturer(left=()), meter)
        assert late.gauges == {"graphs": 8, "graphs_left": 0, "graphs_bytes": 100}
        assert late.when_idle(0) is None
        late.before_step(rows(9), 0, may_wait=True)
        assert meter.num_told == 1


def invalid_capture() -> Exception:
    """What is raised while a capture is ended that had no memory."""
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    error.__context__ = NO_MEMORY
    return error


class TestAtTheStart:
    @pytest.mark.parametrize("is_all_compiled", [True, False])
    def test_little_is_captured_if_no_kernel_is_left_to_compile(
        self, is_all_compiled: bool, meter: FakeMeter
    ) -> None:
        capturer: Any = FakeCapturer(left=SIZES)
        meter.taken_bytes = 0
        late = capture_steps(capturer, cast("Any", meter), is_all_compiled=is_all_compiled)
        assert late.gauges["graphs"] == (3 if is_all_compiled else 8)
        assert late.gauges["graphs_bytes"] == meter.taken_bytes == 10
        assert (late.when_idle(0) is None) == (not is_all_compiled)

    def test_the_first_ones_hold_eight_rows_or_a_prompt_of_128_tokens(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[Any] = []
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        for name in ("capture_decode", "capture_mixed"):
            monkeypatch.setattr(GraphCapturer, name, lambda _, size: done.append(size))
        for name in ("warm_up_ends", "_warm_up_head"):
            monkeypatch.setattr(GraphCapturer, name, lambda _, name=name: done.append(name))
        shapes = mixed_shapes(256, 1024, 135_000_000)
        nothing: Any = None
        states: Any = SimpleNamespace(max_num_seqs=256)
        capturer = GraphCapturer(states, nothing, nothing, nothing, nothing, shapes, nothing)
        capturer.capture_first()
        mixed = [(128, 16, 8), (256, 16, 8), (256, 256, 8)]
        assert done == [1, 2, 4, 8, *mixed, "warm_up_ends", "_warm_up_head"]
        left = [*capturer.left]
        assert left[:2] == [16, 24]
        assert left[10:] == [256, *shapes[3:]]
        done.clear()
        capturer.capture_all()
        assert [size for size in done if not isinstance(size, str)] == left
        assert not capturer.left
        assert [*capturer.sizes] == [1, 2, 4, 8, *left[:11], *shapes]


class TestErrors:
    @pytest.mark.parametrize(
        "error", [NO_MEMORY, RuntimeError("CUDA error: out of memory"), invalid_capture()]
    )
    def test_without_memory_there_will_be_no_more(
        self,
        error: Exception,
        late: LateGraphs,
        capturer: FakeCapturer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        capturer.error = error
        with caplog.at_level(logging.WARNING):
            late.before_step(rows(9), 0, may_wait=False)
            capturer.error = None
            late.before_step(rows(9), PERIOD, may_wait=True)
            assert late.when_idle(0) is None
        assert not capturer.captured
        assert late.gauges["graphs_left"] == 5
        (told,) = caplog.messages
        assert told.startswith("no memory for the graph of 16 decode rows: 5 of 8 steps stay")
        assert "\n" not in told

    def test_any_other_is_the_callers_and_there_will_be_no_more_either(
        self, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        capturer.error = RuntimeError("CUDA error: an illegal memory access was encountered")
        with pytest.raises(RuntimeError, match="illegal"):
            late.before_step(rows(1, 300), 0, may_wait=False)
        capturer.error = None
        late.before_step(rows(1, 300), 1, may_wait=False)
        assert not capturer.captured
        assert late.when_idle(0) is None


class TestInAWorker:
    """On a CPU, whose steps need no graph."""

    def test_a_worker_captures_while_it_rests_and_sees_messages_in_between(
        self, make_rig: Any, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        rig = make_rig(late_graphs=late)
        worker, now = rig.worker, now_ns()
        assert worker.gauges is late.gauges
        assert worker.tick(now) == now + QUIET
        now += QUIET
        assert worker.tick(now) == now
        assert capturer.captured == [16]
        worker.on_message(rig.plan([(0, 0, 3)], new=[rig.new(0, [1, 2, 3])], repeat=2), 0)
        while (back := worker.tick(now)) == now:
            pass
        assert back == now + QUIET
        assert capturer.captured == [16]
        assert [len(output.token_ids) // 4 for _, output in worker.outgoing[::2]] == [1, 1]
        for _ in range(4):
            worker.tick(now + QUIET)
        assert worker.tick(now + QUIET) is None
        assert capturer.captured == [16, 32, 40, MEDIUM, LARGE]

    def test_a_step_that_cannot_be_a_graph_gets_none(
        self, make_rig: Any, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        capturer.sizes = capturer.left = [1, SMALL]
        rig = make_rig(late_graphs=late)
        new = [rig.new(0, [1, 2, 3], prompt_logprobs=1)]
        rig.worker.on_message(rig.plan([(0, 0, 3)], new=new, repeat=2), 0)
        assert rig.worker.tick(0) == 0
        assert not capturer.captured
        rig.worker.tick(0)
        assert capturer.captured == [1]

    def test_a_step_gets_its_graph_first(
        self, make_rig: Any, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        capturer.sizes = capturer.left = [1, 2, 4, SMALL]
        rig = make_rig(late_graphs=late)
        new = [rig.new(slot, [slot + 1]) for slot in range(3)]
        worker = rig.worker
        worker.on_message(rig.plan([(slot, 0, 1) for slot in range(3)], new=new, repeat=2), 0)
        assert worker.tick(0) == 0
        assert capturer.captured == [SMALL]
        worker.tick(0)
        assert capturer.captured == [SMALL, 4]

    def test_under_load_the_first_execution_of_a_plan_may_wait(
        self,
        make_rig: Any,
        late: LateGraphs,
        capturer: FakeCapturer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(module, "_PERIOD_NS", 0)
        rig = make_rig(late_graphs=late)
        rig.worker.on_message(rig.plan([(0, 0, 3)], new=[rig.new(0, [1, 2, 3])], repeat=5), 0)
        while rig.worker.tick(0) == 0:
            pass
        assert capturer.captured == [16]
        assert len(rig.worker.outgoing) == 10

    def test_a_capture_that_fails_before_a_step_fails_the_step_alone(
        self, make_rig: Any, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        capturer.error = RuntimeError("no such stream")
        capturer.left = [*SIZES]
        rig = make_rig(late_graphs=late)
        tokens = [1, 2, 3, 4, 5]
        (failed,) = rig.step([(0, 0, 5)], new=[rig.new(0, tokens)])
        assert failed.failure.message == "RuntimeError: no such stream"
        assert not failed.failure.device_lost
        again = rig.new(0, tokens, generation=1)
        rig.step([(0, 0, 5)], new=[again], repeat=3, fresh=True)
        assert rig.tokens(1001) == rig.model.greedy(tokens, 3)

    def test_without_memory_the_step_runs_all_the_same(
        self, make_rig: Any, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        capturer.error = NO_MEMORY
        capturer.left = [*SIZES]
        rig = make_rig(late_graphs=late)
        tokens = [1, 2, 3, 4, 5]
        rig.step([(0, 0, 5)], new=[rig.new(0, tokens)], repeat=3)
        assert rig.tokens(1000) == rig.model.greedy(tokens, 3)

    def test_a_worker_that_ends_captures_nothing(
        self, make_rig: Any, late: LateGraphs, capturer: FakeCapturer
    ) -> None:
        worker = make_rig(late_graphs=late).worker
        worker.tick(0)
        worker.on_message(Shutdown(), QUIET)
        assert worker.tick(QUIET) is None
        assert not capturer.captured
