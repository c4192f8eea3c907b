"""The batch-invariant mode: each token is computed alone, so nothing depends on what else is in its step.

Sums over other shapes round differently. A token that is a forward pass of its own, behind those before it, has the
same shapes whether its prompt comes whole, in pieces or from the cache, and whoever runs beside it.
"""

from collections.abc import Iterator

import torch

from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.model_executor import Model, ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.step_inputs import AttentionInputs, StepInputs
from pillion.kernels.paged_attention import gather_rows


class LoneTokenExecutor(ModelExecutor):
    """Takes as many forward passes as a step has tokens, and one product with the head per row that samples."""

    def __init__(self, model: Model, kv_cache: KvCache) -> None:
        super().__init__(model, kv_cache)
        self._model = model
        self._kv_cache = kv_cache

    def execute(self, inputs: StepInputs, logits: torch.Tensor | None = None) -> ModelOutput:
        """See `ModelExecutor.execute`. Waits for the device: the host must know the positions."""
        input_ids, positions = inputs.input_ids, inputs.positions
        hidden = torch.cat(
            [
                self._model.forward(
                    input_ids[token, None], positions[token, None], self._kv_cache, attention
                )
                for token, attention in enumerate(self._lone(inputs))
            ]
        )
        if len(inputs.sample_slots_np) == 0:
            return ModelOutput(hidden=hidden, logits=None)
        last = hidden.index_select(0, inputs.logits_indices)
        found = self.compute_logits(last)
        return ModelOutput(hidden=hidden, logits=found if logits is None else logits.copy_(found))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ModelExecutor.compute_logits`."""
        return torch.cat([self._model.compute_logits(row[None]) for row in hidden])

    def _lone(self, inputs: StepInputs) -> Iterator[AttentionInputs]:
        """What attention needs for each token as a decode row."""
        step = inputs.attention
        one_token = step.query_start_loc.new_tensor([0, 1])
        lengths = step.query_start_loc.diff().tolist()
        is_masked = (step.seq_lens == 0).tolist()
        rows = [row for row, length in enumerate(lengths) for _ in range(length)]
        for token, (row, position) in enumerate(zip(rows, inputs.positions.tolist(), strict=True)):
            seq_len = 0 if is_masked[row] else position + 1
            seq_lens = step.seq_lens.new_tensor([seq_len])
            table = step.block_table[row, None]
            gather = None
            if step.gather is not None:
                layer_kv = self._kv_cache.layer(0)
                gather = gather_rows(layer_kv, table, seq_lens, 1, max(seq_len, 1))
            yield AttentionInputs(
                query_start_loc=one_token,
                seq_lens=seq_lens,
                block_table=table,
                slot_mapping=step.slot_mapping[token, None],
                num_decode_rows=1,
                max_query_len=1,
                max_seq_len=seq_len,
                max_decode_seq_len=seq_len,
                gather=gather,
            )
