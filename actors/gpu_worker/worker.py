"""The worker's core: plans in, one step at a time, outputs out."""

import logging
from collections import deque
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.launched_steps import LaunchedStep, LaunchedSteps
from pillion.actors.gpu_worker.model_executor import ModelExecutor
from pillion.actors.gpu_worker.output_processor import OutputProcessor, PendingOutput, StepIdentity
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_faults import DeviceLost, failure_of, rows_of
from pillion.messages.base import RingMessage
from pillion.messages.control import PeerRestarted, Shutdown
from pillion.messages.inboxes import WorkerInbox
from pillion.messages.steps import StepPlan, StepTimes
from pillion.runtime.clock import now_ns as clock_ns
from pillion.runtime.errors import InvariantBroken

# The edge first: a client waits for it, while the scheduler has planned ahead.
OUTPUT_RECEIVERS: Final = ("detokenizer", "scheduler")

logger = logging.getLogger(__name__)


class Worker:
    """Runs plans in the order in which they arrive: each once, then again until the next one is there.

    One call of `tick` launches or collects one step, so messages are seen between any two steps. Up to
    `steps_in_flight` steps are launched before the first of them is collected.

    An exception in a step is answered as a StepFailure, behind the steps launched before it. If it has broken
    the device, the worker has `finished`, and `device_error` says of what.
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
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.device_error: Exception | None = None
        self.counters: dict[str, int | float] = {
            "steps": 0,
            "failed_steps": 0,
            "prefill_tokens": 0,
            "decode_tokens": 0,
            "prepare_ns": 0,
            "execute_ns": 0,
            "output_ns": 0,
        }
        self.gauges: dict[str, int | float | str] = {}
        self.waits_for_device = False
        self._epoch = epoch
        self._device = device
        self._states = states
        self._input_preparer = input_preparer
        self._executor = executor
        self._output_processor = output_processor
        self._steps_in_flight = steps_in_flight
        self._scheduler_epoch = 1
        self._plans: deque[StepPlan] = deque()
        self._plan: StepPlan | None = None
        self._executions = 0  # of _plan
        self._last_plan_id: int | None = None
        self._awaits_fresh_plan = False
        self._next_step_id = 0
        self._launched = LaunchedSteps()

    @torch.inference_mode()
    def on_message(self, message: WorkerInbox, now_ns: int) -> None:
        """Takes a plan, or news of the scheduler. Raises InvariantBroken if a plan is missing."""
        match message:
            case StepPlan():
                self._on_plan(message)
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
        if len(self._launched) < self._steps_in_flight and self._launch():
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
        return bool(self._plans or self._plan is not None or self._launched)

    def _on_plan(self, plan: StepPlan) -> None:
        if plan.epoch < self._scheduler_epoch:
            return
        self._on_scheduler_epoch(plan.epoch)
        if self._awaits_fresh_plan and not plan.fresh:
            return
        self._awaits_fresh_plan = False
        if self._last_plan_id is not None and plan.plan_id != self._last_plan_id + 1:
            raise InvariantBroken(f"plan {plan.plan_id} follows plan {self._last_plan_id}")
        self._last_plan_id = plan.plan_id
        self._plans.append(plan)

    def _on_scheduler_epoch(self, epoch: int) -> None:
        """A new scheduler knows nothing of our slots: it starts with a table that is empty."""
        if epoch <= self._scheduler_epoch:
            return
        self._scheduler_epoch = epoch
        self._awaits_fresh_plan = False
        self._clear()

    def _clear(self) -> None:
        """Forgets all plans and frees all slots."""
        self._last_plan_id = None
        self._plans.clear()
        self._plan = None
        occupied = self._states.occupied()
        self._input_preparer.release(occupied)
        self._output_processor.release(occupied)

    def _launch(self) -> bool:
        """Launches the next execution of a plan. False: every plan had its turn and no grant is left."""
        started_ns = clock_ns()
        if self._plans:
            self._plan, self._executions = self._plans.popleft(), 0
        plan = self._plan
        if plan is None:
            return False
        step = StepIdentity(
            self._epoch, self._next_step_id, plan.plan_id, self._executions, plan.epoch
        )
        rows: PlanRows | None = None
        try:
            rows = self._rows(plan)
            if self._executions and not len(rows):
                # Nothing that this plan names can go on before another plan says more.
                self._plan = None
                return False
            sequence_ids = rows_of(self._states, plan, rows)
            pending, times = PendingOutput.of_nothing(), None
            if len(rows):
                pending, times = self._run(rows, started_ns)
        except Exception as error:
            self._fail(error, step, rows_of(self._states, plan, rows))
            return True
        self._next_step_id += 1
        self._executions += 1
        if self._executions >= plan.repeat:
            self._plan = None
        self._launched.add(LaunchedStep(step, sequence_ids, pending, times))
        return True

    def _rows(self, plan: StepPlan) -> PlanRows:
        """The rows of the plan's next execution; what it changes is applied before the first one."""
        if self._executions == 0:
            self._input_preparer.apply(plan)
            self._output_processor.apply(plan)
        return self._input_preparer.rows(plan, self._executions)

    def _run(self, rows: PlanRows, started_ns: int) -> tuple[PendingOutput, StepTimes]:
        """The three stages of a step; preparation counts from when its plan was taken."""
        inputs = self._input_preparer.prepare(rows)
        prepared_ns = clock_ns()
        output = self._executor.execute(inputs)
        executed_ns = clock_ns()
        pending = self._output_processor.process(inputs, output)
        times = StepTimes(
            prepare_ns=prepared_ns - started_ns,
            execute_ns=executed_ns - prepared_ns,
            output_ns=clock_ns() - executed_ns,
            num_prefill_tokens=inputs.num_prefill_tokens,
            num_decode_tokens=inputs.num_decode_rows,
        )
        self._count(times)
        return pending, times

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
            self._fail(error, launched.identity, self._launched.void())
            return
        self._launched.drop_oldest()
        if launched.failure is not None:
            output = replace(output, failure=launched.failure)
        # An edge has no use for a step that had no rows.
        receivers = OUTPUT_RECEIVERS if launched.times is not None else ("scheduler",)
        self.outgoing += [(receiver, output) for receiver in receivers]

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
            sequence_ids = np.concatenate([self._launched.void(), sequence_ids])
        if not len(sequence_ids):
            raise error
        logger.warning("step %d of plan %d failed", step.step_id, step.plan_id, exc_info=error)
        self.counters["failed_steps"] += 1
        self._next_step_id = step.step_id + 1
        failure = failure_of(error, sequence_ids, is_lost)
        nothing = PendingOutput.of_nothing()
        self._launched.add(LaunchedStep(step, sequence_ids, nothing, failure=failure))
        if is_lost:
            self._collect()
            self.device_error = error
            self.finished = True
        else:
            self._clear()
            self._awaits_fresh_plan = True

    def _count(self, times: StepTimes) -> None:
        counters = self.counters
        counters["steps"] += 1
        counters["prefill_tokens"] += times.num_prefill_tokens
        counters["decode_tokens"] += times.num_decode_tokens
        counters["prepare_ns"] += times.prepare_ns
        counters["execute_ns"] += times.execute_ns
        counters["output_ns"] += times.output_ns
