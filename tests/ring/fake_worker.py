"""A worker without tensors that keeps every rule of messages/steps.py and checks that the others do.

Its KV pool is simulated: a cell holds the state behind its token, so that each row can see whether what it
would attend over is its own past. That finds blocks reused too early, wrong prefix hits and bad commits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from fake_model import FakeModel, next_state, states_of

from pillion.messages.base import RingMessage
from pillion.messages.codec import num_ids, pack_floats, pack_ids, pack_int64, unpack_ids
from pillion.messages.control import EngineGeometry, KvGroupGeometry, PeerRestarted, Shutdown
from pillion.messages.ids import FINISH_ERROR, FINISH_NONE, SequenceId
from pillion.messages.inboxes import WorkerInbox
from pillion.messages.sampling import TokenSampling
from pillion.messages.steps import (
    NewSequence,
    PromptLogprobs,
    SampledLogprobs,
    StepFailure,
    StepOutput,
    StepPlan,
    TokenMasks,
)
from pillion.runtime.errors import InvariantBroken

# How a step fails: alone, with the device and all steps that were launched, or with the process.
Fault = Literal["step", "device", "crash"]

_NEVER_WRITTEN = -1
_SPOILED = -2
_NOBODY = -1


@dataclass(slots=True)
class FakeRow:
    """A slot's tenant, as the device knows it."""

    sequence_id: SequenceId
    generation: int
    token_ids: list[int]
    states: list[int]  # behind each token
    num_prompt_tokens: int
    num_computed: int
    sampling: TokenSampling
    block_ids: list[int]
    num_written: int = 0  # by its newest step
    finished: bool = False
    noted_finished: bool = False  # the host knows as well
    withheld: bool = False  # the last step computed its newest token and sampled nothing


@dataclass(slots=True)
class Sample:
    """One row of a StepOutput."""

    slot: int
    row: FakeRow
    position: int
    token_id: int
    finish: int


@dataclass(frozen=True, slots=True)
class FakeMask:
    """Tokens that may come at one position; no bits: all."""

    generation: int
    position: int
    bits: bytes


@dataclass(slots=True)
class LaunchedStep:
    """A step whose output has not been collected."""

    step_id: int
    plan_epoch: int
    plan_id: int
    execution: int
    rows: list[FakeRow]
    samples: list[Sample] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failure: StepFailure | None = None


@dataclass(slots=True)
class FakePool:
    """The KV cells of one group, and who wrote them."""

    num_blocks: int
    block_size: int
    cells: list[int] = field(init=False)
    writers: list[SequenceId] = field(init=False)

    def __post_init__(self) -> None:
        self.cells = [_NEVER_WRITTEN] * (self.num_blocks * self.block_size)
        self.writers = [_NOBODY] * (self.num_blocks * self.block_size)

    def write(self, row: FakeRow, start: int, end: int) -> None:
        """Fills the cells of these positions."""
        for position in range(start, end):
            cell = row.block_ids[position // self.block_size] * self.block_size
            cell += position % self.block_size
            self.cells[cell] = row.states[position]
            self.writers[cell] = row.sequence_id

    def spoil(self, rows: list[FakeRow]) -> None:
        """A step that failed halfway may have written anything where its rows write."""
        for row in rows:
            for position in range(row.num_computed - row.num_written, row.num_computed):
                cell = row.block_ids[position // self.block_size] * self.block_size
                self.cells[cell + position % self.block_size] = _SPOILED

    def check(self, row: FakeRow) -> set[SequenceId]:
        """Raises InvariantBroken unless all computed positions hold the row's own past; names the writers."""
        writers: set[SequenceId] = set()
        for number in range(-(-row.num_computed // self.block_size)):
            start = number * self.block_size
            end = min(start + self.block_size, row.num_computed)
            first = row.block_ids[number] * self.block_size
            if self.cells[first : first + end - start] != row.states[start:end]:
                raise InvariantBroken(
                    f"sequence {row.sequence_id} finds foreign content in block {row.block_ids[number]}"
                    f" at positions {start} to {end}, written by"
                    f" {self.writers[first : first + end - start]}"
                )
            writers.update(self.writers[first : first + end - start])
        return writers


class FakeWorker:
    """The core of a gpu_worker, with a hash for a model.

    `shared` collects (reader, writer) of all KV that one sequence read and another one wrote.
    """

    def __init__(
        self,
        model: FakeModel,
        max_num_seqs: int,
        num_blocks: int,
        block_size: int,
        steps_in_flight: int = 2,
        check_kv: bool = True,
        epoch: int = 1,
        fails: Callable[[list[FakeRow]], Fault | None] = lambda rows: None,
    ) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.crashed = (
            False  # by a signal of its own: whoever drives it ends it without another word
        )
        self.has_worked = False
        self.counters: dict[str, int | float] = {
            "steps": 0,
            "rows": 0,
            "repeats": 0,
            "failed_steps": 0,
            "withheld_rows": 0,
        }
        self.gauges: dict[str, int | float | str] = {}
        self.rows: dict[int, FakeRow] = {}  # by slot
        self._masks: dict[int, FakeMask] = {}  # the newest of each slot
        self.shared: set[tuple[SequenceId, SequenceId]] = set()
        self._model = model
        self._max_num_seqs = max_num_seqs
        self._pool = FakePool(num_blocks, block_size)
        self._owners: list[set[int]] = [set() for _ in range(num_blocks)]  # slots by block
        self._cooling: dict[int, int] = {}  # block -> plan that released it and is not answered
        self._steps_in_flight = steps_in_flight
        self._check_kv = check_kv
        self._epoch = epoch
        self._fails = fails
        self._awaits_fresh_plan = False
        self._scheduler_epoch = 1
        self._plans: deque[StepPlan] = deque()
        self._plan: StepPlan | None = None
        self._executions = 0
        self._next_plan_id: int | None = None
        self._next_step_id = 0
        self._launched: deque[LaunchedStep] = deque()

    def on_message(self, message: WorkerInbox, now_ns: int) -> None:
        """Takes a plan, or news of the scheduler."""
        match message:
            case StepPlan():
                if message.epoch < self._scheduler_epoch:
                    return
                self._on_scheduler_epoch(message.epoch)
                if self._awaits_fresh_plan and not message.fresh:
                    return
                self._awaits_fresh_plan = False
                if message.fresh and self.rows:
                    raise InvariantBroken(f"fresh plan {message.plan_id} finds {self.rows}")
                if self._next_plan_id not in (None, message.plan_id):
                    raise InvariantBroken(f"plan {message.plan_id}, expected {self._next_plan_id}")
                self._next_plan_id = message.plan_id + 1
                self._plans.append(message)
            case TokenMasks():
                if message.epoch >= self._scheduler_epoch:
                    self._on_scheduler_epoch(message.epoch)
                    self._take_masks(message)
            case PeerRestarted():
                if message.actor == "scheduler":
                    self._on_scheduler_epoch(message.epoch)
            case Shutdown():
                self.finished = True
            case _:
                assert_never(message)

    def tick(self, now_ns: int) -> int | None:
        """Launches a step or collects one. Returns now_ns while there is work."""
        if len(self._launched) < self._steps_in_flight and self._launch():
            if self.crashed:
                return None
            if len(self._launched) == self._steps_in_flight:
                self._collect()
        elif self._launched:
            self._collect()
        return now_ns if self.has_work else None

    @property
    def has_work(self) -> bool:
        """Whether a step waits to be launched or collected."""
        return bool(self._plans or self._plan is not None or self._launched)

    def _on_scheduler_epoch(self, epoch: int) -> None:
        if epoch > self._scheduler_epoch:
            self._scheduler_epoch = epoch
            self._awaits_fresh_plan = False
            self._masks.clear()
            self._clear()

    def _clear(self) -> None:
        self._plans.clear()
        self._plan = self._next_plan_id = None
        for slot in list(self.rows):
            self._release(slot)
        self._cooling.clear()

    def _launch(self) -> bool:
        """Launches the next execution of a plan, if any has one."""
        if self._plans:
            self._plan, self._executions = self._plans.popleft(), 0
            self._apply(self._plan)
        elif self._plan is None or not any(map(self._may_go_on, unpack_ids(self._plan.slots))):
            self._plan = None
            return False
        plan = self._plan
        active = self._compute_rows(plan, first=self._executions == 0)
        rows = [row for _, row in active]
        step = LaunchedStep(self._next_step_id, plan.epoch, plan.plan_id, self._executions, rows)
        fault = self._fails(rows) if rows else None
        if fault is not None:
            self._fail(step, fault)
            return True
        self._launched.append(step)
        step.prompt_logprobs = [part for row in rows if (part := fake_prompt_logprobs(row))]
        step.samples = self._sample_rows(active)
        self.counters["repeats"] += self._executions > 0
        self._next_step_id += 1
        self._executions += 1
        if self._executions >= plan.repeat:
            self._plan = None
        return True

    def _take_masks(self, message: TokenMasks) -> None:
        columns = (message.slots, message.generations, message.positions)
        rows = list(zip(*map(unpack_ids, columns), strict=True))
        width = len(message.masks) // len(rows)
        for row, (slot, generation, position) in enumerate(rows):
            if slot not in self._masks or generation >= self._masks[slot].generation:
                bits = message.masks[row * width : (row + 1) * width]
                self._masks[slot] = FakeMask(generation, position, bits)

    def _lacks_mask(self, slot: int, row: FakeRow) -> bool:
        if not row.sampling.needs_masks:
            return False
        mask = self._masks.get(slot)
        place = (row.generation, len(row.token_ids))
        return mask is None or (mask.generation, mask.position) != place

    def _fail(self, step: LaunchedStep, fault: Fault) -> None:
        """The step is answered without rows, and nothing is left of the table."""
        if fault == "crash":
            self.crashed = self.finished = True
            self.outgoing.clear()
            return
        self._pool.spoil(step.rows)
        if fault == "device" and self._launched:
            rows = [row for launched in self._launched for row in launched.rows]
            step = replace(self._launched[0], rows=[*rows, *step.rows], samples=[])
            self._launched.clear()
        step.failure = StepFailure(
            message="a fake fault",
            sequence_ids=pack_int64({row.sequence_id for row in step.rows}),
            device_lost=fault == "device",
        )
        self.counters["failed_steps"] += 1
        self._launched.append(step)
        self._next_step_id = step.step_id + 1
        if fault == "device":
            self._collect()
            self.finished = True
        else:
            self._clear()
            self._awaits_fresh_plan = True

    def _apply(self, plan: StepPlan) -> None:
        if plan.repeat < 1:
            raise InvariantBroken(f"plan {plan.plan_id} with repeat {plan.repeat}")
        for slot in unpack_ids(plan.released_slots):
            self._cooling.update(dict.fromkeys(self.rows[slot].block_ids, plan.plan_id))
            self._release(slot)
        for new in plan.new_sequences:
            self._add(new)
        appends = zip(
            unpack_ids(plan.append_slots),
            unpack_ids(plan.append_groups),
            unpack_ids(plan.append_blocks),
            strict=True,
        )
        for slot, group, block_id in appends:
            if group != 0:
                raise InvariantBroken(f"plan {plan.plan_id} appends to group {group}")
            self.rows[slot].block_ids.append(block_id)
            self._owners[block_id].add(slot)

    def _release(self, slot: int) -> None:
        for block_id in self.rows.pop(slot).block_ids:
            self._owners[block_id].discard(slot)

    def _add(self, new: NewSequence) -> None:
        token_ids = unpack_ids(new.token_ids)
        max_total = self._model.max_total(new.num_prompt_tokens, new.sampling)
        if new.slot in self.rows or not 0 <= new.slot < self._max_num_seqs:
            raise InvariantBroken(f"slot {new.slot} of {self._max_num_seqs} is not free for {new}")
        if not 0 <= new.num_computed_tokens < len(token_ids) < max_total:
            raise InvariantBroken(f"{new.num_computed_tokens} of {len(token_ids)} tokens in {new}")
        (packed,) = new.block_ids
        row = FakeRow(
            sequence_id=new.sequence_id,
            generation=new.generation,
            token_ids=token_ids,
            states=states_of(token_ids),
            num_prompt_tokens=new.num_prompt_tokens,
            num_computed=new.num_computed_tokens,
            sampling=new.sampling,
            block_ids=unpack_ids(packed),
        )
        if num_ids(packed) * self._pool.block_size < new.num_computed_tokens:
            raise InvariantBroken(f"{num_ids(packed)} blocks for {new}")
        self.rows[new.slot] = row
        for block_id in row.block_ids:
            self._owners[block_id].add(new.slot)
        if self._check_kv:
            self._check(row)

    def _may_go_on(self, slot: int) -> bool:
        """As far as the host can foresee."""
        row = self.rows[slot]
        return not row.noted_finished and (row.finished or self._can_decode(row))

    def _can_decode(self, row: FakeRow) -> bool:
        capacity = len(row.block_ids) * self._pool.block_size
        return (
            not row.finished
            and row.num_computed == len(row.token_ids) - 1
            and row.num_computed < capacity
        )

    def _compute_rows(self, plan: StepPlan, first: bool) -> list[tuple[int, FakeRow]]:
        """The first half of an execution: all rows write."""
        columns = (plan.slots, plan.generations, plan.starts, plan.num_tokens)
        active: list[tuple[int, FakeRow]] = []
        for slot, generation, start, num_tokens in zip(*map(unpack_ids, columns), strict=True):
            row = self.rows[slot]
            if row.generation != generation:
                raise InvariantBroken(f"generation {generation} of slot {slot} in {plan}")
            if row.finished:
                continue
            if first and start >= 0:
                self._compute(slot, row, start, start + num_tokens)
            elif self._can_decode(row):
                self._compute(slot, row, row.num_computed, row.num_computed + 1)
            else:
                continue
            active.append((slot, row))
        if len(set(unpack_ids(plan.slots))) != num_ids(plan.slots):
            raise InvariantBroken(f"a slot has two rows in {plan}")
        return active

    def _sample_rows(self, active: list[tuple[int, FakeRow]]) -> list[Sample]:
        """The other half: all rows read."""
        self.counters["steps"] += 1
        self.counters["rows"] += len(active)
        if self._check_kv:
            for _, row in active:
                self._check(row)
        samples = []
        for slot, row in active:
            if row.num_computed < len(row.states):
                continue
            if self._lacks_mask(slot, row):
                row.withheld = True
                row.num_computed -= 1
                self.counters["withheld_rows"] += 1
            else:
                samples.append(self._sample(slot, row))
        return samples

    def _compute(self, slot: int, row: FakeRow, start: int, end: int) -> None:
        size = self._pool.block_size
        if start != row.num_computed or not start < end <= len(row.token_ids):
            raise InvariantBroken(f"row {start}..{end} of {row}")
        if end > len(row.block_ids) * size:
            raise InvariantBroken(f"no blocks for {start}..{end} of {row}")
        if row.withheld:
            # It writes what is there already, perhaps in a block that others have found since.
            row.withheld, row.num_computed, row.num_written = False, end, 0
            return
        for block_id in row.block_ids[start // size : (end - 1) // size + 1]:
            if self._owners[block_id] != {slot}:
                raise InvariantBroken(
                    f"{row} writes to block {block_id} of {self._owners[block_id]}"
                )
            if block_id in self._cooling:
                raise InvariantBroken(
                    f"block {block_id} is written again before plan {self._cooling[block_id]},"
                    " which released it, is answered"
                )
        self._pool.write(row, start, end)
        row.num_written = end - start
        row.num_computed = end

    def _check(self, row: FakeRow) -> None:
        for writer in self._pool.check(row):
            if writer != row.sequence_id:
                self.shared.add((row.sequence_id, writer))

    def _sample(self, slot: int, row: FakeRow) -> Sample:
        position = len(row.token_ids)
        token_id, finish = self._model.sample(
            row.states[-1],
            position,
            row.num_prompt_tokens,
            row.sampling,
            self._masks[slot].bits if row.sampling.needs_masks else b"",
        )
        if finish != FINISH_ERROR:
            row.token_ids.append(token_id)
            row.states.append(next_state(row.states[-1], token_id))
        row.finished = finish != FINISH_NONE
        return Sample(slot, row, position, token_id, finish)

    def _collect(self) -> None:
        step = self._launched.popleft()
        for sample in step.samples:
            sample.row.noted_finished |= sample.finish != FINISH_NONE
        if step.execution == 0 and step.plan_epoch == self._scheduler_epoch:
            self._cooling = {
                block_id: plan_id
                for block_id, plan_id in self._cooling.items()
                if plan_id > step.plan_id
            }
        output = self._output(step)
        self.outgoing += [("scheduler", output), ("detokenizer", output)]

    def _output(self, step: LaunchedStep) -> StepOutput:
        samples = step.samples
        failed = [sample.finish == FINISH_ERROR for sample in samples]
        return StepOutput(
            epoch=self._epoch,
            step_id=step.step_id,
            plan_id=step.plan_id,
            execution=step.execution,
            sequence_ids=pack_int64(sample.row.sequence_id for sample in samples),
            slots=pack_ids(sample.slot for sample in samples),
            generations=pack_ids(sample.row.generation for sample in samples),
            positions=pack_ids(sample.position for sample in samples),
            num_tokens=pack_ids(0 if fails else 1 for fails in failed),
            token_ids=pack_ids(
                sample.token_id for sample, fails in zip(samples, failed, strict=True) if not fails
            ),
            finish=bytes(sample.finish for sample in samples),
            logprobs=fake_logprobs(samples),
            prompt_logprobs=step.prompt_logprobs,
            failure=step.failure,
            errors={row: "poisoned" for row, fails in enumerate(failed) if fails},
            plan_epoch=step.plan_epoch,
        )


def fake_logprobs(samples: list[Sample]) -> SampledLogprobs | None:
    """Numbers that depend on all tokens before, for the rows that ask for them."""
    asking = {
        row: sample
        for row, sample in enumerate(samples)
        if sample.row.sampling.logprobs is not None and sample.finish != FINISH_ERROR
    }
    if not asking:
        return None
    num_top = max(sample.row.sampling.logprobs or 0 for sample in asking.values())
    table = [
        logprob_row(sample.row, sample.position, sample.row.sampling.logprobs or 0, num_top)
        for sample in asking.values()
    ]
    return SampledLogprobs(
        num_top=num_top,
        rows=pack_ids(asking),
        token_ids=pack_ids(token_id for ids, _ in table for token_id in ids),
        logprobs=pack_floats(value for _, values in table for value in values),
        ranks=pack_ids(sample.position for sample in asking.values()),
    )


def fake_prompt_logprobs(row: FakeRow) -> PromptLogprobs | None:
    """Of the prompt positions that the row's newest step predicts."""
    num_top = row.sampling.prompt_logprobs
    start = row.num_computed - row.num_written + 1
    end = min(row.num_computed + 1, row.num_prompt_tokens)
    if num_top is None or end <= start:
        return None
    table = [logprob_row(row, position, num_top, num_top) for position in range(start, end)]
    return PromptLogprobs(
        sequence_id=row.sequence_id,
        start=start,
        num_top=num_top,
        token_ids=pack_ids(token_id for ids, _ in table for token_id in ids),
        logprobs=pack_floats(value for _, values in table for value in values),
        ranks=pack_ids(range(start, end)),
    )


def logprob_row(
    row: FakeRow, position: int, num_top: int, width: int
) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of the token at this position and the best beside it."""
    token_id, state = row.token_ids[position], row.states[position - 1]
    ids = [token_id, *range(num_top), *[-1] * (width - num_top)]
    return ids, [-float(state >> 40) / (1 + place) for place in range(1 + width)]


def fake_geometry(
    model: FakeModel,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_blocks: int,
    block_size: int,
    epoch: int = 1,
) -> EngineGeometry:
    """What a FakeWorker of these sizes tells the engine."""
    group = KvGroupGeometry(
        kind="full_attention",
        num_layers=1,
        num_blocks=num_blocks,
        block_size_tokens=block_size,
        block_bytes=block_size * 8,
    )
    return EngineGeometry(
        epoch=epoch,
        model_name="fake",
        architecture="FakeModel",
        device="cpu",
        dtype="float32",
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_groups=[group],
        weights_bytes=0,
        kv_bytes=num_blocks * block_size * 8,
    )
