"""The steps between a plan and its answer: begun, launched, collected, and what becomes of one that fails."""

import logging
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.forward_step import ForwardStep, MaskPatience
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.launched_steps import LaunchedStep, LaunchedSteps
from pillion.actors.gpu_worker.model_executor import ModelExecutor
from pillion.actors.gpu_worker.output_processor import OutputProcessor
from pillion.actors.gpu_worker.pending_output import PendingOutput, StepIdentity
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_counters import StepCounters
from pillion.actors.gpu_worker.step_faults import DeviceLost, FailedSteps, failure_of, rows_of
from pillion.messages.base import RingMessage
from pillion.messages.steps import StepFailure, StepPlan, StepTimes
from pillion.runtime.clock import now_ns as clock_ns
from pillion.runtime.errors import InvariantBroken

# The edge first: a client waits for it, while the scheduler has planned ahead.
OUTPUT_RECEIVERS: Final = ("detokenizer", "scheduler")

logger = logging.getLogger(__name__)


class StepPipeline:
    """At most one step is open behind its forward pass, and some are launched to their end.

    An exception in a step is answered as a StepFailure, behind the steps launched before it, and leaves the
    tables empty. If it has broken the device, or if every step fails, `end_error` says of what this ends.
    """

    def __init__(
        self,
        epoch: int,
        device: Device,
        states: RequestStates,
        input_preparer: InputPreparer,
        executor: ModelExecutor,
        output_processor: OutputProcessor,
        failed_steps: FailedSteps,
        on_failed: Callable[[], None],
        late_graphs: LateGraphs | None = None,
    ) -> None:
        """`on_failed`: what was planned behind a step that failed is void. `late_graphs` hears of every step."""
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.has_worked = False  # a step came out well
        self.end_error: Exception | None = None
        self.open: ForwardStep | None = None
        self.step_counters = StepCounters()
        self._epoch = epoch
        self._device = device
        self._states = states
        self._input_preparer = input_preparer
        self._executor = executor
        self._output_processor = output_processor
        self._failed = failed_steps
        self._on_failed = on_failed
        self._late_graphs = late_graphs
        self._next_step_id = 0
        self._launched = LaunchedSteps()
        self._patience = MaskPatience(launches_queue=device.is_cuda)

    @property
    def num_launched(self) -> int:
        """Steps that wait to be collected."""
        return len(self._launched)

    def free_slots(self) -> None:
        """Nobody has a slot any more."""
        self.open = None
        self.step_counters.nothing_waits()
        occupied = self._states.occupied()
        self._input_preparer.release(occupied)
        self._output_processor.release(occupied)

    def begin(self, plan: StepPlan, execution: int) -> bool:
        """Begins an execution of a plan. False: nothing that it names can go on before another plan says more.

        Leaves it in `open`, or has launched it if there is nothing to compute.
        """
        started_ns = clock_ns()
        step = StepIdentity(self._epoch, self._next_step_id, plan.plan_id, execution, plan.epoch)
        rows: PlanRows | None = None
        try:
            rows = self._rows(plan, execution)
            if execution and not len(rows):
                return False
            if len(rows):
                self.step_counters.step_begins(started_ns)
                if self._late_graphs is not None:
                    # An answer that is held back may wait for an execution of the same plan.
                    self._late_graphs.before_step(rows, started_ns, may_wait=not execution)
                inputs = self._input_preparer.prepare(rows)
                prepared_ns = clock_ns()
                sequence_ids = inputs.sample_sequence_ids_np
                if len(rows.prefill_slots):  # of which not all may sample
                    sequence_ids = rows_of(self._states, plan, rows)
                self.open = ForwardStep(
                    identity=step,
                    sequence_ids=sequence_ids,
                    num_rows=len(rows),
                    inputs=inputs,
                    output=self._executor.execute(inputs),
                    started_ns=started_ns,
                    prepared_ns=prepared_ns,
                    executed_ns=clock_ns(),
                )
        except Exception as error:
            self._fail(error, step, rows_of(self._states, plan, rows))
            return True
        self._next_step_id += 1
        if self.open is None:
            nothing = PendingOutput.of_nothing()
            self._launched.add(LaunchedStep(step, nothing.sequence_ids_np, nothing))
        return True

    def _rows(self, plan: StepPlan, execution: int) -> PlanRows:
        """The rows of this execution of the plan; what it changes is applied before the first one."""
        if execution == 0:
            self._input_preparer.apply(plan)
            self._output_processor.apply(plan)
        return self._input_preparer.rows(plan, execution)

    def all_wait(self, forward: ForwardStep) -> bool:
        """Whether nobody loses anything while masks are awaited."""
        num_waiting = len(self._output_processor.unmasked(forward.inputs))
        num_ended = np.count_nonzero(self._states.finished_np[forward.inputs.sample_slots_np])
        return bool(num_waiting + num_ended == forward.num_rows)

    def end_if_masked(self, forward: ForwardStep) -> bool:
        """Launches the end of a step if no mask is missing."""
        return not len(self._output_processor.unmasked(forward.inputs)) and self._end(forward)

    def end_if_due(self, forward: ForwardStep, has_newer_plan: bool) -> bool:
        """The same, but also without masks when others would have to wait for them."""
        if self.end_if_masked(forward):
            return True
        if self.all_wait(forward) and not has_newer_plan:
            return False
        return self._patience.is_over(forward, clock_ns()) and self._end(forward)

    def _end(self, forward: ForwardStep) -> bool:
        """Launches the third stage of a step."""
        self.open = None
        began_ns = clock_ns()
        try:
            pending = self._output_processor.process(forward.inputs, forward.output)
        except Exception as error:
            self._fail(error, forward.identity, forward.sequence_ids)
            return True
        times = forward.times(began_ns, clock_ns())
        self.step_counters.count_step(forward, times)
        self._launched.add(
            LaunchedStep(
                forward.identity,
                forward.sequence_ids,
                pending,
                times,
                executed_ns=forward.executed_ns,
            )
        )
        return True

    def collect(self, only_if_ready: bool = False) -> StepTimes | None:
        """Answers the oldest step that was launched, if there is one.

        Returns where its time went, if it came out well and had rows.
        """
        launched = self._launched.oldest
        if launched is None:
            return None
        try:
            if only_if_ready and not launched.pending.is_ready():
                return None
            output = self._output_processor.collect(
                launched.pending, launched.identity, launched.times
            )
        except Exception as error:
            # Those launched behind it took its tokens for good.
            self._fail(error, launched.identity, self._void())
            return None
        self._launched.drop_oldest()
        collected_ns = clock_ns()
        if launched.times is not None:
            self._patience.note_collected(launched.executed_ns, collected_ns)
        if not self._launched and self.open is None:
            self.step_counters.step_collected(collected_ns, not self._states.all_finished())
        if launched.failure is not None:
            output = replace(output, failure=self._judged(launched.failure))
        elif launched.times is not None:
            self.has_worked = True
            self._failed.end_row()
        # An edge has no use for a step that had no rows.
        receivers = OUTPUT_RECEIVERS if launched.times is not None else ("scheduler",)
        self.outgoing += [(receiver, output) for receiver in receivers]
        return launched.times

    def _judged(self, failure: StepFailure) -> StepFailure:
        """If every step fails that ends this worker, as a lost device does."""
        if self.end_error is None:
            self.end_error = self._failed.add(failure.message)
        return failure if self.end_error is None else replace(failure, device_lost=True)

    def _void(self) -> npt.NDArray[np.int64]:
        """Nothing that was begun comes to an end. Returns the sequences of all those steps, [n] int64."""
        sequence_ids = self._launched.void()
        if self.open is not None:
            sequence_ids = np.concatenate([sequence_ids, self.open.sequence_ids])
            self.open = None
        return sequence_ids

    def _fail(
        self, error: Exception, step: StepIdentity, sequence_ids: npt.NDArray[np.int64]
    ) -> None:
        """This step gives nothing; with the device, those launched before it are lost too.

        Raises the error if it is a bug in the ring, or if no sequence can have caused it.
        """
        if isinstance(error, InvariantBroken):
            raise error
        is_lost = isinstance(error, DeviceLost) or self._device.is_lost()
        if is_lost and self._launched.oldest is not None:
            step = self._launched.oldest.identity
            sequence_ids = np.concatenate([self._void(), sequence_ids])
        if not len(sequence_ids):
            raise error
        logger.warning("step %d of plan %d failed", step.step_id, step.plan_id, exc_info=error)
        self.step_counters.counters["failed_steps"] += 1
        self._next_step_id = step.step_id + 1
        failure = failure_of(error, sequence_ids, is_lost)
        nothing = PendingOutput.of_nothing()
        self._launched.add(LaunchedStep(step, sequence_ids, nothing, failure=failure))
        if is_lost:
            self.end_error = error
            self.collect()
        else:
            self._on_failed()
            self.free_slots()
