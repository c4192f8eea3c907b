"""The worker's core: plans in, one step at a time, outputs out."""

import logging
from collections.abc import Callable
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.forward_step import ForwardStep, MaskPatience
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.launched_steps import LaunchedStep, LaunchedSteps
from pillion.actors.gpu_worker.model_executor import ModelExecutor
from pillion.actors.gpu_worker.output_processor import OutputProcessor, PendingOutput, StepIdentity
from pillion.actors.gpu_worker.plan_queue import PlanQueue
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_counters import StepCounters
from pillion.actors.gpu_worker.step_faults import DeviceLost, FailedSteps, failure_of, rows_of
from pillion.messages.base import RingMessage
from pillion.messages.control import PeerRestarted, Shutdown
from pillion.messages.inboxes import WorkerInbox
from pillion.messages.steps import StepFailure, StepPlan, TokenMasks
from pillion.runtime.clock import now_ns as clock_ns
from pillion.runtime.errors import InvariantBroken

# The edge first: a client waits for it, while the scheduler has planned ahead.
OUTPUT_RECEIVERS: Final = ("detokenizer", "scheduler")

logger = logging.getLogger(__name__)


class Worker:
    """Runs plans in the order in which they arrive: each once, then again until the next one is there.

    One call of `tick` launches or collects one step, so messages are seen between any two steps. Up to
    `steps_in_flight` steps are launched before the first of them is collected.

    A step with rows whose token masks are missing is left open behind its forward pass: masks may come
    meanwhile. It ends without them before the other rows lose time by it; those rows then are computed again.

    An exception in a step is answered as a StepFailure, behind the steps launched before it. If it has broken
    the device, or if every step fails, the worker has `finished`, and `end_error` says of what.
    """

    def __init__(
        self,
        epoch: int,
        device: Device,
        states: RequestStates,
        input_preparer: InputPreparer,
        executor: ModelExecutor,
        output_processor: OutputProcessor,
        steps_in_flight: int,
        self_test: Callable[[], str | None] | None = None,
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.has_worked = False
        self.end_error: Exception | None = None
        self._step_counters = StepCounters()
        self.counters = self._step_counters.counters
        self.gauges: dict[str, int | float | str] = {}
        self.waits_for_device = False
        self._epoch = epoch
        self._device = device
        self._states = states
        self._input_preparer = input_preparer
        self._executor = executor
        self._output_processor = output_processor
        self._steps_in_flight = steps_in_flight
        self._plans = PlanQueue()
        self._failed = FailedSteps(self_test)
        self._next_step_id = 0
        self._forward: ForwardStep | None = None
        self._launched = LaunchedSteps()
        self._patience = MaskPatience(launches_queue=device.is_cuda)

    @torch.inference_mode()
    def on_message(self, message: WorkerInbox, now_ns: int) -> None:
        """Takes a plan, or news of the scheduler. Raises InvariantBroken if a plan is missing."""
        match message:
            case StepPlan():
                self._on_plan(message)
            case TokenMasks():
                if message.epoch >= self._plans.scheduler_epoch:
                    self._on_scheduler_epoch(message.epoch)
                    self._output_processor.take_masks(message)
            case PeerRestarted():
                if message.actor == "scheduler":
                    self._on_scheduler_epoch(message.epoch)
            case Shutdown():
                self.finished = True
            case _:
                assert_never(message)

    @torch.inference_mode()
    def tick(self, now_ns: int) -> int | None:
        """Launches a step or collects one. Returns now_ns while there is work: come back at once."""
        self.waits_for_device = False
        has_launched = False
        if self._forward is not None:
            has_launched = self._end_if_due(self._forward)
        elif len(self._launched) < self._steps_in_flight and (has_launched := self._begin()):
            # Masks that are missing may be among the messages that came during the forward pass.
            has_launched = self._forward is None or self._end_if_masked(self._forward)
        if self._forward is not None:
            if len(self._launched):
                self._collect()  # what masks depend on
            elif not self._plans.has_newer and self._all_wait(self._forward):
                return None
        elif has_launched:
            if len(self._launched) == self._steps_in_flight:
                self._collect()
        else:
            num_launched = len(self._launched)
            self._collect(only_if_ready=True)
            self.waits_for_device = 0 < num_launched == len(self._launched)
        return now_ns if self.has_work else None

    @property
    def has_work(self) -> bool:
        """Whether a step waits to be launched or collected."""
        return self._plans.has_any or self._forward is not None or bool(self._launched)

    def _on_plan(self, plan: StepPlan) -> None:
        if plan.epoch >= self._plans.scheduler_epoch:
            self._on_scheduler_epoch(plan.epoch)
            self._plans.add(plan)

    def _on_scheduler_epoch(self, epoch: int) -> None:
        """A new scheduler knows nothing of our slots: it starts with a table that is empty."""
        if self._plans.adopt(epoch):
            self._free_slots()
            self._output_processor.forget_masks()

    def _free_slots(self) -> None:
        self._forward = None
        self._step_counters.nothing_waits()
        occupied = self._states.occupied()
        self._input_preparer.release(occupied)
        self._output_processor.release(occupied)

    def _begin(self) -> bool:
        """Begins the next execution of a plan. False: every plan had its turn and no grant is left.

        Leaves it in `_forward`, or has launched it if there is nothing to compute.
        """
        started_ns = clock_ns()
        turn = self._plans.turn()
        if turn is None:
            return False
        plan, execution = turn
        step = StepIdentity(self._epoch, self._next_step_id, plan.plan_id, execution, plan.epoch)
        rows: PlanRows | None = None
        try:
            rows = self._rows(plan, execution)
            if execution and not len(rows):
                self._plans.end_grant()
                return False
            sequence_ids = rows_of(self._states, plan, rows)
            if len(rows):
                self._step_counters.step_begins(started_ns)
                inputs = self._input_preparer.prepare(rows)
                prepared_ns = clock_ns()
                self._forward = ForwardStep(
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
        self._plans.note_executed()
        if self._forward is None:
            self._launched.add(LaunchedStep(step, sequence_ids, PendingOutput.of_nothing()))
        return True

    def _rows(self, plan: StepPlan, execution: int) -> PlanRows:
        """The rows of this execution of the plan; what it changes is applied before the first one."""
        if execution == 0:
            self._input_preparer.apply(plan)
            self._output_processor.apply(plan)
        return self._input_preparer.rows(plan, execution)

    def _all_wait(self, forward: ForwardStep) -> bool:
        """Whether nobody loses anything while masks are awaited."""
        return len(self._output_processor.unmasked(forward.inputs)) == forward.num_rows

    def _end_if_masked(self, forward: ForwardStep) -> bool:
        """Launches the end of a step if no mask is missing."""
        return not len(self._output_processor.unmasked(forward.inputs)) and self._end(forward)

    def _end_if_due(self, forward: ForwardStep) -> bool:
        """The same, but also without masks when others would have to wait for them."""
        if self._end_if_masked(forward):
            return True
        if self._all_wait(forward) and not self._plans.has_newer:
            return False
        return self._patience.is_over(forward, clock_ns()) and self._end(forward)

    def _end(self, forward: ForwardStep) -> bool:
        """Launches the third stage of a step."""
        self._forward = None
        began_ns = clock_ns()
        try:
            pending = self._output_processor.process(forward.inputs, forward.output)
        except Exception as error:
            self._fail(error, forward.identity, forward.sequence_ids)
            return True
        times = forward.times(began_ns, clock_ns())
        self._step_counters.count_step(forward, times)
        self._launched.add(LaunchedStep(forward.identity, forward.sequence_ids, pending, times))
        return True

    def _collect(self, only_if_ready: bool = False) -> None:
        """Answers the oldest step that was launched, if there is one."""
        launched = self._launched.oldest
        if launched is None:
            return
        try:
            if only_if_ready and not launched.pending.is_ready():
                return
            output = self._output_processor.collect(
                launched.pending, launched.identity, launched.times
            )
        except Exception as error:
            # Those launched behind it took its tokens for good.
            self._fail(error, launched.identity, self._void())
            return
        self._launched.drop_oldest()
        collected_ns = clock_ns()
        self._patience.note_collected(collected_ns)
        if not self._launched and self._forward is None:
            self._step_counters.step_collected(collected_ns, not self._states.all_finished())
        if launched.failure is not None:
            output = replace(output, failure=self._judged(launched.failure))
        elif launched.times is not None:
            self.has_worked = True
            self._failed.end_row()
        # An edge has no use for a step that had no rows.
        receivers = OUTPUT_RECEIVERS if launched.times is not None else ("scheduler",)
        self.outgoing += [(receiver, output) for receiver in receivers]

    def _judged(self, failure: StepFailure) -> StepFailure:
        """If every step fails that ends this worker, as a lost device does."""
        if self.finished or (error := self._failed.add(failure.message)) is None:
            return failure
        self.end_error, self.finished = error, True
        return replace(failure, device_lost=True)

    def _void(self) -> npt.NDArray[np.int64]:
        """Nothing that was begun comes to an end. Returns the sequences of all those steps, [n] int64."""
        sequence_ids = self._launched.void()
        if self._forward is not None:
            sequence_ids = np.concatenate([sequence_ids, self._forward.sequence_ids])
            self._forward = None
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
        self.counters["failed_steps"] += 1
        self._next_step_id = step.step_id + 1
        failure = failure_of(error, sequence_ids, is_lost)
        nothing = PendingOutput.of_nothing()
        self._launched.add(LaunchedStep(step, sequence_ids, nothing, failure=failure))
        if is_lost:
            self.end_error, self.finished = error, True
            self._collect()
        else:
            self._plans.await_fresh()
            self._free_slots()
