"""Inputs of steps whose launches are made one by one; those of decode rows are captured, too."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.block_tables import BlockTables
from pillion.actors.gpu_worker.cuda_graphs import GraphTable
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.plan_rows import PlanRows, prompt_logprob_rows
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.step_inputs import AttentionInputs, StepInputs
from pillion.kernels.paged_attention import (
    DecodeGather,
    PrefillTiles,
    gather_rows,
    prefill_tiles,
)
from pillion.kernels.prepare_decode import DecodeRows, prepare_decode
from pillion.kernels.rotary_kv_write import rows_in_pool


@dataclass(frozen=True, slots=True)
class DecodeConstants:
    """Tensors that depend on the slots of the decode rows alone: kept while the rows stay the same."""

    slots_np: npt.NDArray[np.int32]
    # [num_rows] int64
    slots: torch.Tensor
    # [num_rows + 1] int32
    query_start_loc: torch.Tensor
    # [num_rows] int64
    logits_indices: torch.Tensor


@dataclass(frozen=True, slots=True)
class _PrefillTokens:
    """Tokens of all prefill rows, one row after the other."""

    # [num_tokens] int64 each
    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor


class EagerInputs:
    """Tensors made on the device, from the state table and from what the host knows of the rows."""

    def __init__(
        self,
        device: Device,
        states: RequestStates,
        blocks: BlockTables,
        kv_cache: KvCache,
        graphs: GraphTable,
    ) -> None:
        self._device = device
        self._states = states
        self._blocks = blocks
        self._kv_cache = kv_cache
        self._graphs = graphs
        self._constants = self.decode_constants(np.zeros(0, dtype=np.int32))

    def of_decode(self, slots_np: npt.NDArray[np.int32]) -> StepInputs:
        """Of a step of the decode rows in these slots."""
        self._keep_constants(slots_np)
        return self.decode_inputs(self._constants, self._longest(slots_np))

    def of_prefill(self, rows: PlanRows) -> StepInputs:
        """Of a step with prefill rows."""
        device, states = self._device, self._states
        self._keep_constants(rows.decode_slots)
        max_decode_seq_len = self._longest(rows.decode_slots)
        # With the tables of the prefill rows come theirs.
        decode = self._decode_rows(self._constants, num_blocks=0)
        num_decode = len(rows.decode_slots)
        lengths = rows.prefill_lens
        tokens = self._prefill_tokens(rows, lengths)
        all_slots = np.concatenate([rows.decode_slots, rows.prefill_slots])
        slots = device.upload_int64(all_slots)
        bounds = np.cumsum(np.concatenate([[0], np.ones(num_decode, dtype=np.int64), lengths]))
        sampling = np.flatnonzero(
            np.concatenate(
                [
                    np.ones(num_decode, dtype=np.bool_),
                    rows.prefill_ends == states.num_known_np[rows.prefill_slots],
                ]
            )
        )
        num_last_chunks = len(sampling) - num_decode
        seq_lens = torch.cat([decode.seq_lens, device.upload(rows.prefill_ends.astype(np.int32))])
        max_seq_len = max(max_decode_seq_len, int(rows.prefill_ends.max()))
        table = self._blocks.of(slots, max_seq_len)
        slot_mapping = torch.cat([decode.slot_mapping, tokens.slot_mapping])
        query_lens, prefill_seq_lens = tuple(lengths.tolist()), tuple(rows.prefill_ends.tolist())
        tiles: PrefillTiles | None = None
        if device.is_cuda:
            tiles = prefill_tiles(query_lens, prefill_seq_lens, num_decode, seq_lens, device.upload)
        attention = AttentionInputs(
            query_start_loc=device.upload(bounds.astype(np.int32)),
            seq_lens=seq_lens,
            block_table=table,
            slot_mapping=slot_mapping,
            num_decode_rows=num_decode,
            max_query_len=int(lengths.max()),
            max_seq_len=max_seq_len,
            max_decode_seq_len=max_decode_seq_len,
            prefill_query_lens=query_lens,
            prefill_seq_lens=prefill_seq_lens,
            prefill_tiles=tiles,
            gather=self._gather(table, seq_lens, num_decode, max_decode_seq_len),
            pool_rows=self._pool_rows(slot_mapping),
        )
        sample_slots = all_slots[sampling]
        return StepInputs(
            input_ids=torch.cat([decode.input_ids, tokens.input_ids]),
            positions=torch.cat([decode.positions, tokens.positions]),
            attention=attention,
            slots=slots,
            advance=torch.cat([decode.advance, device.upload(lengths)]),
            logits_indices=self._last_tokens(bounds[sampling + 1] - 1),
            sample_slots=device.upload_int64(sample_slots),
            sample_valid=torch.cat([decode.valid, decode.valid.new_ones(num_last_chunks)]),
            sample_slots_np=sample_slots,
            sample_generations_np=states.generation_np[sample_slots],
            sample_sequence_ids_np=states.sequence_id_np[sample_slots],
            num_decode_rows=num_decode,
            num_prefill_tokens=int(lengths.sum()),
            prompt_logprobs=prompt_logprob_rows(states, rows, bounds[num_decode:]),
        )

    def decode_constants(self, slots_np: npt.NDArray[np.int32]) -> DecodeConstants:
        """What steps of these decode rows have in common."""
        num_rows = len(slots_np)
        return DecodeConstants(
            slots_np=slots_np,
            slots=self._device.upload_int64(slots_np),
            query_start_loc=self._device.upload(np.arange(num_rows + 1, dtype=np.int32)),
            logits_indices=self._device.upload_int64(range(num_rows)),
        )

    def decode_inputs(
        self, constants: DecodeConstants, max_seq_len: int | None = None
    ) -> StepInputs:
        """Inputs of a step of decode rows alone, all made on the device.

        `max_seq_len` is the host's bound on KV lengths; None: any length, for graphs.
        """
        max_seq_len = max_seq_len or self._states.max_model_len
        num_rows = len(constants.slots_np)
        decode = self._decode_rows(constants, self._blocks.blocks_for(max_seq_len))
        attention = AttentionInputs(
            query_start_loc=constants.query_start_loc,
            seq_lens=decode.seq_lens,
            block_table=decode.block_table,
            slot_mapping=decode.slot_mapping,
            num_decode_rows=num_rows,
            max_query_len=min(num_rows, 1),
            max_seq_len=max_seq_len,
            max_decode_seq_len=max_seq_len,
            gather=self._gather(decode.block_table, decode.seq_lens, num_rows, max_seq_len),
            pool_rows=self._pool_rows(decode.slot_mapping),
        )
        return StepInputs(
            input_ids=decode.input_ids,
            positions=decode.positions,
            attention=attention,
            slots=constants.slots,
            advance=decode.advance,
            logits_indices=constants.logits_indices,
            sample_slots=constants.slots,
            sample_valid=decode.valid,
            sample_slots_np=constants.slots_np,
            sample_generations_np=self._states.generation_np.take(constants.slots_np, mode="clip"),
            sample_sequence_ids_np=self._states.sequence_id_np.take(
                constants.slots_np, mode="clip"
            ),
            num_decode_rows=num_rows,
            num_prefill_tokens=0,
        )

    def _decode_rows(self, constants: DecodeConstants, num_blocks: int) -> DecodeRows:
        states = self._states
        return prepare_decode(
            constants.slots,
            states.token_table,
            states.num_computed,
            states.num_known,
            self._blocks.capacity,
            states.finished,
            self._blocks.table,
            self._blocks.block_size,
            num_blocks,
        )

    def _keep_constants(self, slots_np: npt.NDArray[np.int32]) -> None:
        if not np.array_equal(slots_np, self._constants.slots_np):
            self._constants = self.decode_constants(slots_np)

    def _longest(self, slots_np: npt.NDArray[np.int32]) -> int:
        """A bound on the KV lengths of decode rows in these slots, behind this step; 0 without rows."""
        return int(self._states.num_computed_np[slots_np].max(initial=-1)) + 1

    def _last_tokens(self, indices: npt.NDArray[np.int64]) -> torch.Tensor:
        num_rows = self._graphs.padded_sample_rows(len(indices))
        return self._device.upload(np.pad(indices, (0, num_rows - len(indices))))

    def _prefill_tokens(self, rows: PlanRows, lengths: npt.NDArray[np.int64]) -> _PrefillTokens:
        row_starts = np.cumsum(lengths) - lengths
        offsets = np.arange(lengths.sum()) - np.repeat(row_starts, lengths)
        positions = self._device.upload(np.repeat(rows.prefill_starts, lengths) + offsets)
        slots = self._device.upload_int64(np.repeat(rows.prefill_slots, lengths))
        block_size = self._blocks.block_size
        block_ids = self._blocks.table[slots, positions // block_size].to(torch.int64)
        return _PrefillTokens(
            input_ids=self._states.token_table[slots, positions].to(torch.int64),
            positions=positions,
            slot_mapping=block_ids * block_size + positions % block_size,
        )

    def _gather(
        self,
        table: torch.Tensor,
        seq_lens: torch.Tensor,
        num_decode_rows: int,
        max_decode_seq_len: int,
    ) -> tuple[DecodeGather, ...] | None:
        """For the torch reference of attention, which is the CPU's path."""
        if self._device.is_cuda:
            return None
        return gather_rows(
            self._kv_cache.layer(0), table, seq_lens, num_decode_rows, max_decode_seq_len
        )

    def _pool_rows(self, slot_mapping: torch.Tensor) -> torch.Tensor | None:
        """The same for the write of keys and values."""
        return None if self._device.is_cuda else rows_in_pool(self._kv_cache.layer(0), slot_mapping)
