"""Inputs of captured steps: what is captured, and what the host writes before a replay."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.block_tables import BlockTables
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.mixed_table import MixedShape, MixedTable, fill_mixed_table
from pillion.actors.gpu_worker.plan_rows import PlanRows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_inputs import AttentionInputs, StepInputs
from pillion.kernels.paged_attention import PrefillTiles
from pillion.kernels.prepare_mixed import prepare_mixed

if TYPE_CHECKING:
    from pillion.actors.gpu_worker.cuda_graphs import DecodeGraph, MixedGraph


class CapturedInputs:
    """A captured step's tensors never move: the host only says which slots, or which rows, they are of."""

    def __init__(self, device: Device, states: RequestStates, blocks: BlockTables) -> None:
        self._device = device
        self._states = states
        self._blocks = blocks
        # graph size -> its last inputs, for whom they were asked for, and the states' changes up to then; the graph's
        # slots on the device are those of these inputs
        self._graph_inputs: dict[int, tuple[StepInputs, npt.NDArray[np.int32], int]] = {}

    def empty_mixed_table(self, shape: MixedShape) -> torch.Tensor:
        """The table of a captured step, with nothing but padding: [shape.size] int32."""
        no_slots, nothing = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
        scratch_slot = self._states.max_num_seqs
        return self._device.upload(
            fill_mixed_table(shape, no_slots, nothing, nothing, scratch_slot)
        )

    def mixed_inputs(self, shape: MixedShape, array: torch.Tensor) -> StepInputs:
        """Inputs of a step with prefill rows, all made on the device from a table of this shape."""
        states, blocks = self._states, self._blocks
        table: MixedTable[torch.Tensor] = MixedTable.over(array, shape)
        rows = prepare_mixed(
            table.rows,
            table.query_start_loc,
            table.token_rows,
            states.token_table,
            states.num_computed,
            states.num_known,
            blocks.capacity,
            states.finished,
            blocks.table,
            blocks.block_size,
        )
        attention = AttentionInputs(
            query_start_loc=table.query_start_loc,
            seq_lens=rows.decode_lens,
            block_table=blocks.of(rows.slots, states.max_model_len),
            slot_mapping=rows.slot_mapping,
            num_decode_rows=shape.num_rows,
            max_query_len=shape.num_tokens,
            max_seq_len=states.max_model_len,
            max_decode_seq_len=states.max_model_len,
            prefill_tiles=PrefillTiles(
                table.tile_rows, table.tile_starts, rows.prefill_lens, shape.num_queries
            ),
        )
        scratch = np.full(shape.num_rows, states.max_num_seqs, dtype=np.int32)
        return StepInputs(
            input_ids=rows.input_ids,
            positions=rows.positions,
            attention=attention,
            slots=rows.slots,
            advance=rows.advance,
            logits_indices=rows.last_tokens,
            sample_slots=rows.slots,
            sample_valid=rows.valid,
            sample_slots_np=scratch,
            sample_generations_np=scratch,
            sample_sequence_ids_np=scratch.astype(np.int64),
            num_decode_rows=0,
            num_prefill_tokens=shape.num_tokens,
        )

    def of_decode(self, graph: "DecodeGraph", slots_np: npt.NDArray[np.int32]) -> StepInputs:
        """The graph's own tensors, with its slots set to these and its other rows masked.

        An array that was given before must hold the same slots.
        """
        last, num_changes = self._graph_inputs.get(graph.num_rows), self._states.num_changes
        if last is not None and last[1] is slots_np and last[2] == num_changes:
            return last[0]
        has_slots = last is not None and np.array_equal(last[0].sample_slots_np, slots_np)
        if last is not None and has_slots and self._has_tenants_of_now(last[0]):
            inputs = last[0]
        else:
            inputs = self._new_of_decode(graph, slots_np)
        if not has_slots:
            padded_np = np.full(graph.num_rows, self._states.max_num_seqs, dtype=np.int64)
            padded_np[: len(slots_np)] = slots_np
            self._device.write(graph.slots, padded_np)
        self._graph_inputs[graph.num_rows] = inputs, slots_np, num_changes
        return inputs

    def _has_tenants_of_now(self, inputs: StepInputs) -> bool:
        """Whether the rows are of those who are in their slots now."""
        slots_np = inputs.sample_slots_np
        generations_np = self._states.generation_np[slots_np]
        sequence_ids_np = self._states.sequence_id_np[slots_np]
        return np.array_equal(inputs.sample_generations_np, generations_np) and np.array_equal(
            inputs.sample_sequence_ids_np, sequence_ids_np
        )

    def _new_of_decode(self, graph: "DecodeGraph", slots_np: npt.NDArray[np.int32]) -> StepInputs:
        num_rows, inputs = len(slots_np), graph.step.inputs
        return replace(
            inputs,
            graph=graph.step,
            sample_slots=graph.slots[:num_rows],
            sample_valid=inputs.sample_valid[:num_rows],
            sample_slots_np=slots_np,
            sample_generations_np=self._states.generation_np[slots_np],
            sample_sequence_ids_np=self._states.sequence_id_np[slots_np],
            num_decode_rows=num_rows,
        )

    def of_mixed(self, graph: "MixedGraph", rows: PlanRows) -> StepInputs:
        """The graph's own tensors, for these rows; the device masks those that don't sample yet."""
        states, inputs = self._states, graph.step.inputs
        num_decode = len(rows.decode_slots)
        slots_np = np.concatenate([rows.decode_slots, rows.prefill_slots])
        lengths = np.ones(len(slots_np), dtype=np.int64)
        lengths[num_decode:] = rows.prefill_lens
        starts = np.full(len(slots_np), -1, dtype=np.int64)
        starts[num_decode:] = rows.prefill_starts
        self._device.write(
            graph.table,
            fill_mixed_table(graph.shape, slots_np, starts, lengths, states.max_num_seqs),
        )
        samples_np = np.ones(len(slots_np), dtype=np.bool_)
        samples_np[num_decode:] = rows.prefill_ends == states.num_known_np[rows.prefill_slots]
        return replace(
            inputs,
            graph=graph.step,
            sample_slots=inputs.slots[: len(slots_np)],
            sample_valid=inputs.sample_valid[: len(slots_np)],
            sample_slots_np=slots_np,
            sample_generations_np=states.generation_np[slots_np],
            sample_sequence_ids_np=states.sequence_id_np[slots_np],
            num_decode_rows=num_decode,
            num_prefill_tokens=int(lengths[num_decode:].sum()),
            samples_np=samples_np,
        )
