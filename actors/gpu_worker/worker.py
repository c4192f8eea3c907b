"""The worker's core: plans in, one step at a time, outputs out."""

from typing import assert_never

import torch

from pillion.actors.gpu_worker.late_graphs import LateGraphs
from pillion.actors.gpu_worker.output_processor import OutputProcessor
from pillion.actors.gpu_worker.plan_queue import PlanQueue
from pillion.actors.gpu_worker.step_pipeline import StepPipeline
from pillion.messages.base import RingMessage
from pillion.messages.control import PeerRestarted, Shutdown
from pillion.messages.inboxes import WorkerInbox
from pillion.messages.steps import StepPlan, TokenMasks


class Worker:
    """Runs plans in the order in which they arrive: each once, then again until the next one is there.

    One call of `tick` launches or collects one step, so messages are seen between any two steps. Up to
    `steps_in_flight` steps are launched before the first of them is collected. While a grant lasts the next step is
    launched before the answer of the one that was collected is sent: short steps leave no time for both.

    A step with rows whose token masks are missing is left open behind its forward pass: masks may come
    meanwhile. It ends without them before the other rows lose time by it; those rows then are computed again.

    A worker whose device is broken, or whose every step fails, has `finished`, and `end_error` says of what.
    """

    def __init__(
        self,
        plans: PlanQueue,
        steps: StepPipeline,
        output_processor: OutputProcessor,
        steps_in_flight: int,
        late_graphs: LateGraphs | None = None,
    ) -> None:
        """`plans` hears of the failed ones among `steps`; `late_graphs` are captured while there is nothing to do."""
        self.finished = False
        self._plans = plans
        self._steps = steps
        self._output_processor = output_processor
        self._steps_in_flight = steps_in_flight
        self._late_graphs = late_graphs
        self._held: list[tuple[str, RingMessage]] = []  # an answer until the next step is launched
        self.outgoing = steps.outgoing
        self.counters = steps.step_counters.counters
        self.gauges = {} if late_graphs is None else late_graphs.gauges
        self.waits_for_device = False

    @property
    def has_worked(self) -> bool:
        """Whether a step came out well."""
        return self._steps.has_worked

    @property
    def end_error(self) -> Exception | None:
        """Of what this worker has finished, if not by Shutdown."""
        return self._steps.end_error

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
        steps = self._steps
        self.waits_for_device = False
        if self._held and self._plans.has_newer:
            self._release()  # a plan takes longer to launch than a step of a grant
            return now_ns
        has_launched = False
        if steps.open is not None:
            has_launched = steps.end_if_due(steps.open, self._plans.has_newer)
        elif steps.num_launched < self._steps_in_flight and (has_launched := self._begin()):
            # Masks that are missing may be among the messages that came during the forward pass.
            has_launched = steps.open is None or steps.end_if_masked(steps.open)
        if self._held:
            self._release()
        elif steps.open is not None:
            if steps.num_launched:
                steps.collect()  # what masks depend on
            elif not self._plans.has_newer and steps.all_wait(steps.open):
                return None
        elif steps.num_launched == self._steps_in_flight:
            self._collect()
        elif not has_launched:
            num_launched = steps.num_launched
            steps.collect(only_if_ready=True)
            self.waits_for_device = 0 < num_launched == steps.num_launched
        if steps.end_error is not None:
            self.finished = True
        return now_ns if self.has_work else self._rest(now_ns)

    def _rest(self, now_ns: int) -> int | None:
        """There is nothing to do. Returns when to be back; None: after a message."""
        if self._late_graphs is None or self.finished:
            return None
        return self._late_graphs.when_idle(now_ns)

    @property
    def has_work(self) -> bool:
        """Whether a step waits to be launched or collected."""
        steps = self._steps
        return self._plans.has_any or steps.open is not None or steps.num_launched > 0

    def _begin(self) -> bool:
        """Begins the next execution of a plan. False: every plan had its turn and no grant is left."""
        turn = self._plans.turn()
        if turn is None:
            return False
        if self._steps.begin(*turn):
            self._plans.note_executed()
            return True
        self._plans.end_grant()
        return False

    def _collect(self) -> None:
        """Answers the oldest step that was launched. Its answer is held back if a step follows at once.

        First tokens are not, nor what masks depend on.
        """
        steps = self._steps
        times = steps.collect()
        if (
            steps.num_launched
            and self._plans.repeats
            and times is not None
            and not times.num_prefill_tokens
            and not self._output_processor.awaits_masks
            and not self.finished
        ):
            self._held = self.outgoing.copy()
            self.outgoing.clear()

    def _release(self) -> None:
        """What was held back leaves, before all that was said since."""
        self.outgoing[:0] = self._held
        self._held = []

    def _on_plan(self, plan: StepPlan) -> None:
        if plan.epoch >= self._plans.scheduler_epoch:
            self._on_scheduler_epoch(plan.epoch)
            self._plans.add(plan)

    def _on_scheduler_epoch(self, epoch: int) -> None:
        """A new scheduler knows nothing of our slots: it starts with a table that is empty."""
        if self._plans.adopt(epoch):
            self._steps.free_slots()
            self._output_processor.forget_masks()
