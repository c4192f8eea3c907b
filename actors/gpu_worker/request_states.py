"""The state table: one row per slot. The device owns tokens and counters, the host keeps what it can foresee."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.table_writes import TableWrites
from pillion.kernels.sampled_step import SlotTables
from pillion.messages.sampling import MAX_END_TOKEN_IDS
from pillion.messages.steps import NewSequence
from pillion.runtime.errors import InvariantBroken

FREE: Final = -1  # generation of a slot without a tenant
_NO_STOPS: Final = np.full(MAX_END_TOKEN_IDS, -1, dtype=np.int32)


class RequestStates:
    """Rows 0 .. max_num_seqs - 1 are slots; the last row is scratch and always finished.

    The `_np` counters run ahead of the device by the steps in flight. They are exact for a slot that the
    device has not finished; whether it has, the host learns when the step is collected. What a plan changes is there
    at once, and on the device when the TableWrites that it is given to are flushed.
    """

    def __init__(self, device: Device, max_num_seqs: int, max_model_len: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        num_rows = max_num_seqs + 1

        def counters() -> torch.Tensor:
            return torch.zeros(num_rows, dtype=torch.int64, device=device.device)

        # [max_num_seqs + 1, max_model_len] int32; prompt and sampled tokens
        self.token_table = torch.zeros(
            (num_rows, max_model_len), dtype=torch.int32, device=device.device
        )
        # [max_num_seqs + 1] int64; tokens in the KV cache
        self.num_computed = counters()
        # [max_num_seqs + 1] int64; tokens in token_table
        self.num_known = counters()
        # [max_num_seqs + 1] int64; known tokens at which the sequence ends with "length"
        self.max_total = counters()
        # [max_num_seqs + 1] bool; also True for free slots
        self.finished = torch.ones(num_rows, dtype=torch.bool, device=device.device)
        # [max_num_seqs + 1, MAX_END_TOKEN_IDS] int32; -1 fills
        self.stop_ids = torch.full(
            (num_rows, MAX_END_TOKEN_IDS), -1, dtype=torch.int32, device=device.device
        )

        self.generation_np = np.full(max_num_seqs, FREE, dtype=np.int32)
        self.sequence_id_np = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed_np = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_known_np = np.zeros(max_num_seqs, dtype=np.int64)
        self.finished_np = np.ones(max_num_seqs, dtype=np.bool_)
        # prompts of slots whose prompt log-probabilities were asked for, and how many beside the token's own
        self.prompt_logprobs: dict[int, tuple[npt.NDArray[np.int32], int]] = {}
        # Counts whatever happens to slots but steps: a tenant comes, ends or leaves, or a token is taken back.
        self.num_changes = 0

    def add(self, new_sequences: Sequence[NewSequence], writes: TableWrites) -> None:
        """Sequences take free slots. Raises InvariantBroken if one can't."""
        slots, computed, known, most = [], [], [], []
        for new in new_sequences:
            tokens = np.frombuffer(new.token_ids, dtype=np.int32)
            max_total = min(new.num_prompt_tokens + new.sampling.max_tokens, self.max_model_len)
            self._check(new, len(tokens), max_total)
            self._note_tenant(new, tokens)
            slots.append(new.slot)
            computed.append(new.num_computed_tokens)
            known.append(len(tokens))
            most.append(max_total)
            writes.copy(self.token_table, new.slot, 0, tokens)
            writes.copy(self.stop_ids, new.slot, 0, _padded(new.sampling.stop_token_ids))
        writes.set(self.num_computed, slots, computed)
        writes.set(self.num_known, slots, known)
        writes.set(self.max_total, slots, most)
        writes.set(self.finished, slots, [False] * len(slots))

    def _note_tenant(self, new: NewSequence, tokens: npt.NDArray[np.int32]) -> None:
        slot = new.slot
        self.num_changes += 1
        self.generation_np[slot] = new.generation
        self.sequence_id_np[slot] = new.sequence_id
        self.num_computed_np[slot] = new.num_computed_tokens
        self.num_known_np[slot] = len(tokens)
        self.finished_np[slot] = False
        if new.sampling.prompt_logprobs is not None:
            prompt = tokens[: new.num_prompt_tokens]
            self.prompt_logprobs[slot] = (prompt, new.sampling.prompt_logprobs)

    def release(self, slots: npt.NDArray[np.int32], writes: TableWrites) -> None:
        """Frees slots; their rows in later plans are stale. Freeing a free slot changes nothing."""
        self.num_changes += 1
        self.generation_np[slots] = FREE
        self.finished_np[slots] = True
        released = slots.tolist()
        writes.set(self.finished, released, [True] * len(released))
        for slot in released:
            self.prompt_logprobs.pop(slot, None)

    def withhold(self, slots: npt.NDArray[np.integer]) -> None:
        """The host takes back the tokens that it foresaw: these slots compute their last known one again."""
        self.num_changes += 1
        self.num_known_np[slots] -= 1
        self.num_computed_np[slots] = self.num_known_np[slots] - 1

    def note_finished(
        self, slots: npt.NDArray[np.int32], generations: npt.NDArray[np.int32]
    ) -> None:
        """The host learns that the device has finished these tenants."""
        self.num_changes += 1
        same = self.generation_np[slots] == generations
        self.finished_np[slots[same]] = True

    def tables(self) -> SlotTables:
        """What the end of a step reads and writes of all slots; `add` and `release` write some of it."""
        return SlotTables(
            self.token_table,
            self.num_computed,
            self.num_known,
            self.max_total,
            self.finished,
            self.stop_ids,
        )

    def all_finished(self) -> bool:
        """Whether no slot has a tenant that could go on, as far as the host knows."""
        return bool(self.finished_np.all())

    def occupied(self) -> npt.NDArray[np.int32]:
        """Slots that have a tenant."""
        return np.flatnonzero(self.generation_np != FREE).astype(np.int32)

    def _check(self, new: NewSequence, num_tokens: int, max_total: int) -> None:
        what = f"sequence {new.sequence_id} for slot {new.slot}, generation {new.generation}"
        if not 0 <= new.slot < self.max_num_seqs or new.generation < 0:
            raise InvariantBroken(f"{what}: there are {self.max_num_seqs} slots")
        if self.generation_np[new.slot] != FREE:
            tenant = self.sequence_id_np[new.slot]
            raise InvariantBroken(f"{what}: the slot belongs to sequence {tenant}")
        if not 0 <= new.num_computed_tokens < num_tokens or num_tokens >= max_total:
            raise InvariantBroken(
                f"{what}: {new.num_computed_tokens} of {num_tokens} tokens computed, at most {max_total}"
            )
        if not 0 < new.num_prompt_tokens <= num_tokens:
            raise InvariantBroken(f"{what}: {new.num_prompt_tokens} prompt tokens of {num_tokens}")
        if len(new.sampling.stop_token_ids) > MAX_END_TOKEN_IDS:
            raise InvariantBroken(f"{what}: {len(new.sampling.stop_token_ids)} stop ids")


def _padded(stop_ids: Sequence[int]) -> npt.NDArray[np.int32]:
    """[MAX_END_TOKEN_IDS], filled up with -1; not to be written to."""
    if not stop_ids:
        return _NO_STOPS
    padded = _NO_STOPS.copy()
    padded[: len(stop_ids)] = stop_ids
    return padded
