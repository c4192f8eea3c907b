"""The second stage of a step: the forward pass."""

from dataclasses import dataclass
from typing import Protocol

import torch

from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.step_inputs import AttentionInputs, StepInputs


class Model(Protocol):
    """What every model family offers."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: KvCache,
        attention: AttentionInputs,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] behind the last norm. Writes: kv_cache.

        wanted [n] int64: only of these tokens, [n, hidden_size].
        """

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, hidden_size] to [n, vocab_size] float32. Writes: out, if it is given."""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What the forward pass gives."""

    # [num_tokens, hidden_size]; only of the step's wanted tokens, if it names them
    hidden: torch.Tensor
    # [num_sample_rows, vocab_size] float32; None if no row samples
    logits: torch.Tensor | None


class ModelExecutor:
    """Runs a step's tokens through the model and the rows that sample through its head."""

    def __init__(self, model: Model, kv_cache: KvCache) -> None:
        self._model = model
        self._kv_cache = kv_cache

    def execute(self, inputs: StepInputs, logits: torch.Tensor | None = None) -> ModelOutput:
        """The forward pass of a step that has rows.

        Writes: the KV cache, at the step's tokens; logits, if it is given.
        """
        if inputs.graph is not None:
            return inputs.graph.replay(len(inputs.sample_slots_np))
        wanted = inputs.wanted_tokens
        hidden = self._model.forward(
            inputs.input_ids, inputs.positions, self._kv_cache, inputs.attention, wanted
        )
        if len(inputs.sample_slots_np) == 0:
            return ModelOutput(hidden=hidden, logits=None)
        last = hidden
        if inputs.num_prefill_tokens and wanted is None:
            last = hidden.index_select(0, inputs.logits_indices)
        compute = self._model.compute_logits
        found = compute(last) if logits is None else compute(last, logits)
        return ModelOutput(hidden=hidden, logits=found[: len(inputs.sample_slots_np)])

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size] float32 of any hidden states [n, hidden_size]."""
        return self._model.compute_logits(hidden)
