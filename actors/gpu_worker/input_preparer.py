"""The first stage of a step: from a plan and the state table to the tensors that the step reads."""

import numpy as np
import numpy.typing as npt

from pillion.actors.gpu_worker.block_tables import BlockTables
from pillion.actors.gpu_worker.captured_inputs import CapturedInputs
from pillion.actors.gpu_worker.cuda_graphs import GraphTable
from pillion.actors.gpu_worker.decode_repeat import DecodeRepeat
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.eager_inputs import EagerInputs
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.messages.steps import StepPlan
from pillion.runtime.errors import InvariantBroken


class InputPreparer:
    """Applies what a plan changes and gathers what its rows read.

    Nothing here waits for the device: decode rows read tokens, positions and block tables from device state,
    and the host only foresees which rows will count.
    """

    def __init__(
        self,
        device: Device,
        states: RequestStates,
        blocks: BlockTables,
        graphs: GraphTable,
        eager: EagerInputs,
        captured: CapturedInputs,
    ) -> None:
        self._states = states
        self._blocks = blocks
        self._graphs = graphs
        self._eager = eager
        self._captured = captured
        self._repeat: DecodeRepeat | None = None
        tables = [*states.tables(), blocks.table, blocks.capacity]
        self._writes = TableWrites(device.upload, tables)

    def apply(self, plan: StepPlan) -> None:
        """Frees slots, seats new sequences, appends blocks; in this order, once per plan."""
        self._release(_column(plan.released_slots))
        self._states.add(plan.new_sequences, self._writes)
        if any(_column(plan.append_groups)):
            raise InvariantBroken(f"plan {plan.plan_id} appends blocks to a group that isn't there")
        append_slots = _column(plan.append_slots)
        self._check_slots(append_slots)
        slots, blocks = [], []
        for new in plan.new_sequences:
            (block_ids,) = new.block_ids
            blocks.append(_column(block_ids))
            slots.append(np.full(len(blocks[-1]), new.slot, dtype=np.int32))
        slots.append(append_slots)
        blocks.append(_column(plan.append_blocks))
        self._blocks.append(np.concatenate(slots), np.concatenate(blocks), self._writes)
        self._writes.flush()

    def release(self, slots: npt.NDArray[np.int32]) -> None:
        """Frees these slots and takes their blocks."""
        self._release(slots)
        self._writes.flush()

    def _release(self, slots: npt.NDArray[np.int32]) -> None:
        if len(slots):
            self._check_slots(slots)
            self._states.release(slots, self._writes)
            self._blocks.clear(slots, self._writes)

    def rows(self, plan: StepPlan, execution: int) -> PlanRows:
        """The rows that this execution of the plan runs.

        Left out are stale generations, finished sequences, rows without capacity and, in repeats, rows
        whose prefill is not complete.
        """
        if execution:
            return self._only_decoding(plan)
        slots, states = _column(plan.slots), self._states
        self._check_slots(slots)
        starts = _column(plan.starts).astype(np.int64)
        if starts.max(initial=-1) < 0:
            return self._only_decoding(plan)
        live = self._live(plan, slots)
        computed = states.num_computed_np[slots]
        decode = starts < 0
        prefill = live & ~decode
        ends = starts + _column(plan.num_tokens)
        if np.any(prefill & ((starts != computed) | (ends > states.num_known_np[slots]))):
            raise InvariantBroken(
                f"plan {plan.plan_id} prefills {starts.tolist()}..{ends.tolist()} of slots"
                f" {slots.tolist()}, which have {computed.tolist()} of"
                f" {states.num_known_np[slots].tolist()} tokens"
            )
        prefill &= ends <= self._blocks.capacity_np[slots]
        decode &= live & self._can_decode(slots)
        asks = any(slot in states.prompt_logprobs for slot in slots[prefill].tolist())
        return PlanRows(slots[decode], slots[prefill], starts[prefill], ends[prefill], asks)

    def _only_decoding(self, plan: StepPlan) -> PlanRows:
        """Those of the plan's rows that can decode; what the execution before has found, if it still holds."""
        repeat = self._repeat
        if repeat is None or not repeat.goes_on(plan, self._states):
            slots = _column(plan.slots)
            rows = PlanRows.of_decode(slots[self._live(plan, slots) & self._can_decode(slots)])
            repeat = DecodeRepeat.of(plan, rows, self._states, self._blocks.capacity_np)
            self._repeat = repeat
        return repeat.rows

    def _live(self, plan: StepPlan, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """[n] whether the tenants of the plan's slots are those that it means, and have not finished."""
        states = self._states
        live: npt.NDArray[np.bool_] = states.generation_np[slots] == _column(plan.generations)
        return live & ~states.finished_np[slots]

    def _can_decode(self, slots: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """[n] whether all tokens known but the last are computed, and there is room for that one."""
        computed = self._states.num_computed_np[slots]
        can: npt.NDArray[np.bool_] = computed + 1 == self._states.num_known_np[slots]
        return can & (computed < self._blocks.capacity_np[slots])

    def prepare(self, rows: PlanRows) -> StepInputs:
        """The step's tensors. The host's counters move on as if no row finished."""
        states = self._states
        num_decode, num_prefill = len(rows.decode_slots), len(rows.prefill_slots)
        if num_prefill:
            inputs = self._prefilling(rows)
        elif graph := self._graphs.find(num_decode):
            inputs = self._captured.of_decode(graph, rows.decode_slots)
        else:
            inputs = self._eager.of_decode(rows.decode_slots)
        if self._repeat is not None and rows is self._repeat.rows:
            self._repeat.count_step(states)
            return inputs
        states.num_computed_np[rows.decode_slots] += 1
        states.num_known_np[rows.decode_slots] += 1
        if num_prefill:
            states.num_computed_np[rows.prefill_slots] = rows.prefill_ends
            complete = rows.prefill_ends == states.num_known_np[rows.prefill_slots]
            states.num_known_np[rows.prefill_slots[complete]] += 1
        return inputs

    def _prefilling(self, rows: PlanRows) -> StepInputs:
        """Of a step with prefill rows: captured, if there is a graph with room for it and it has what is asked for."""
        if not rows.asks_prompt_logprobs:
            graph = self._graphs.find_mixed(rows.num_tokens, len(rows), len(rows.prefill_slots))
            if graph is not None:
                return self._captured.of_mixed(graph, rows)
        return self._eager.of_prefill(rows)

    def _check_slots(self, slots: npt.NDArray[np.int32]) -> None:
        # A negative number is a large one without its sign.
        if len(slots) and slots.view(np.uint32).max() >= self._states.max_num_seqs:
            raise InvariantBroken(
                f"slots {slots.min()}..{slots.max()} in a table of {self._states.max_num_seqs}"
            )


def _column(data: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(data, dtype=np.int32)
