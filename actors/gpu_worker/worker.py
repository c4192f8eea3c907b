"""The worker's core: plans in, one step at a time, outputs out."""

from collections import deque
from dataclasses import dataclass
from typing import Final, assert_never

import torch

from pillion.actors.gpu_worker.input_preparer import InputPreparer, PlanRows
from pillion.actors.gpu_worker.model_executor import ModelExecutor
from pillion.actors.gpu_worker.output_processor import OutputProcessor, PendingOutput, StepIdentity
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.messages.base import RingMessage
from pillion.messages.control import PeerRestarted, Shutdown
from pillion.messages.inboxes import WorkerInbox
from pillion.messages.steps import StepPlan, StepTimes
from pillion.runtime.clock import now_ns as clock_ns
from pillion.runtime.errors import InvariantBroken

# The edge first: a client waits for it, while the scheduler has planned ahead.
OUTPUT_RECEIVERS: Final = ("detokenizer", "scheduler")


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step whose output has not been collected."""

    identity: StepIdentity
    pending: PendingOutput
    times: StepTimes | None


class Worker:
    """Runs plans in the order in which they arrive: each once, then again until the next one is there.

    One call of `tick` launches or collects one step, so messages are seen between any two steps. Up to
    `steps_in_flight` steps are launched before the first of them is collected.
    """

    def __init__(
        self,
        epoch: int,
        states: RequestStates,
        input_preparer: InputPreparer,
        executor: ModelExecutor,
        output_processor: OutputProcessor,
        steps_in_flight: int,
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.counters: dict[str, int | float] = {
            "steps": 0,
            "prefill_tokens": 0,
            "decode_tokens": 0,
            "prepare_ns": 0,
            "execute_ns": 0,
            "output_ns": 0,
        }
        self.gauges: dict[str, int | float | str] = {}
        self._epoch = epoch
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
        self._next_step_id = 0
        self._launched: deque[_Launched] = deque()

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
        may_launch = len(self._launched) < self._steps_in_flight
        started_ns = clock_ns()
        if may_launch and (granted := self._next_rows()) is not None:
            self._launch(*granted, started_ns)
            if len(self._launched) == self._steps_in_flight:
                self._collect()
        elif self._launched and self._launched[0].pending.is_ready():
            self._collect()
        return now_ns if self.has_work else None

    @property
    def has_work(self) -> bool:
        """Whether a step waits to be launched or collected."""
        return bool(self._plans or self._plan is not None or self._launched)

    def _on_plan(self, plan: StepPlan) -> None:
        if plan.epoch < self._scheduler_epoch:
            return
        self._on_scheduler_epoch(plan.epoch)
        if self._last_plan_id is not None and plan.plan_id != self._last_plan_id + 1:
            raise InvariantBroken(f"plan {plan.plan_id} follows plan {self._last_plan_id}")
        self._last_plan_id = plan.plan_id
        self._plans.append(plan)

    def _on_scheduler_epoch(self, epoch: int) -> None:
        """A new scheduler knows nothing of our slots: it starts with a table that is empty."""
        if epoch <= self._scheduler_epoch:
            return
        self._scheduler_epoch = epoch
        self._last_plan_id = None
        self._plans.clear()
        self._plan = None
        occupied = self._states.occupied()
        self._input_preparer.release(occupied)
        self._output_processor.release(occupied)

    def _next_rows(self) -> tuple[StepPlan, PlanRows] | None:
        """The next execution of a plan; None: every plan had its turn and no grant is left."""
        if self._plans:
            plan = self._plans.popleft()
            self._input_preparer.apply(plan)
            self._output_processor.apply(plan)
            self._plan, self._executions = plan, 0
            return plan, self._input_preparer.rows(plan, 0)
        if self._plan is None:
            return None
        rows = self._input_preparer.rows(self._plan, self._executions)
        if len(rows):
            return self._plan, rows
        # Nothing that this plan names can go on before another plan says more.
        self._plan = None
        return None

    def _launch(self, plan: StepPlan, rows: PlanRows, started_ns: int) -> None:
        identity = StepIdentity(self._epoch, self._next_step_id, plan.plan_id, self._executions)
        self._next_step_id += 1
        self._executions += 1
        if self._executions >= plan.repeat:
            self._plan = None
        pending, times = (
            self._run(rows, started_ns) if len(rows) else (PendingOutput.of_nothing(), None)
        )
        self._launched.append(_Launched(identity, pending, times))

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

    def _collect(self) -> None:
        launched = self._launched.popleft()
        output = self._output_processor.collect(launched.pending, launched.identity, launched.times)
        # An edge has no use for a step that had no rows.
        receivers = OUTPUT_RECEIVERS if launched.times is not None else ("scheduler",)
        self.outgoing += [(receiver, output) for receiver in receivers]

    def _count(self, times: StepTimes) -> None:
        counters = self.counters
        counters["steps"] += 1
        counters["prefill_tokens"] += times.num_prefill_tokens
        counters["decode_tokens"] += times.num_decode_tokens
        counters["prepare_ns"] += times.prepare_ns
        counters["execute_ns"] += times.execute_ns
        counters["output_ns"] += times.output_ns
