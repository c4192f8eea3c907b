"""Faults in steps, on demand, for tests: what a broken kernel, bad weights or a dying device would do.

Flags (runtime/fault_flags.py): `raise_in_layer=K` raises when layer K is about to write its KV, after those
before it have; `nan_in_row` makes the logits of rows NaN; `lose_device` stands for an error that breaks the
device's context. Conditions, all of which must hold: `step=N`, only in the Nth step from 0; `token=T`, only with
this token among the inputs; `position=P`, only with this position among them. `times=N` ends it after N faults.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from pillion.actors.gpu_worker.kv_cache import KvCache
from pillion.actors.gpu_worker.model_executor import Model, ModelExecutor, ModelOutput
from pillion.actors.gpu_worker.step_faults import DeviceLost
from pillion.actors.gpu_worker.step_inputs import StepInputs
from pillion.runtime.errors import ConfigError
from pillion.runtime.fault_flags import FaultFlag

_FAULTS: Final = frozenset({"raise_in_layer", "nan_in_row", "lose_device"})
_CONDITIONS: Final = frozenset({"step", "token", "position", "times"})


class InjectedFault(RuntimeError):
    """A test wanted it."""


@dataclass(slots=True)
class _Fault:
    flag: FaultFlag
    num_times: int = 0

    def tokens_hit(self, inputs: StepInputs, step: int) -> torch.Tensor | None:
        """[num_tokens] bool, the tokens of the step that meet the conditions; None if it does not happen."""
        conditions = self.flag.conditions
        if conditions.get("step", step) != step or self.num_times >= conditions.get(
            "times", 1 << 62
        ):
            return None
        hit = torch.ones_like(inputs.input_ids, dtype=torch.bool)
        if inputs.graph is not None:
            hit[len(inputs.sample_slots_np) :] = False
        if "token" in conditions:
            hit &= inputs.input_ids == conditions["token"]
        if "position" in conditions:
            hit &= inputs.positions == conditions["position"]
        if not bool(hit.any()):
            return None
        self.num_times += 1
        return hit


class _BreakingCache(KvCache):
    """A view of a cache that has one layer less than the model wants."""

    def __init__(self, cache: KvCache, layer: int) -> None:
        self.num_blocks, self.block_size, self.tensor = (
            cache.num_blocks,
            cache.block_size,
            cache.tensor,
        )
        self._cache = cache
        self._layer = layer

    def layer(self, index: int) -> torch.Tensor:
        """As KvCache. Raises InjectedFault for the layer that is to fail."""
        if index == self._layer:
            raise InjectedFault(f"layer {index} fails")
        return self._cache.layer(index)


class FaultyExecutor(ModelExecutor):
    """A ModelExecutor whose steps fail as flags say. It waits for the device, as nothing else here may.

    Raises ConfigError for a fault or condition that there is not.
    """

    def __init__(self, model: Model, kv_cache: KvCache, flags: Sequence[FaultFlag]) -> None:
        super().__init__(model, kv_cache)
        for flag in flags:
            unknown = {flag.fault} - _FAULTS | flag.conditions.keys() - _CONDITIONS
            if unknown:
                raise ConfigError(f"fault_flags: the worker knows no {', '.join(sorted(unknown))}")
        self._faults = [_Fault(flag) for flag in flags]
        self._num_steps = 0

    def execute(self, inputs: StepInputs, logits: torch.Tensor | None = None) -> ModelOutput:
        """As ModelExecutor, or a fault."""
        step, self._num_steps = self._num_steps, self._num_steps + 1
        poisoned = []
        for fault in self._faults:
            hit = fault.tokens_hit(inputs, step)
            if hit is None:
                continue
            if fault.flag.fault == "lose_device":
                raise DeviceLost("the device is gone")
            if fault.flag.fault == "raise_in_layer":
                cache = _BreakingCache(self._kv_cache, fault.flag.value or 0)
                ModelExecutor(self._model, cache).execute(replace(inputs, graph=None))
            poisoned.append(hit)
        output = super().execute(inputs, logits)
        if output.logits is not None:
            for hit in poisoned:
                output.logits[_sampled_rows(inputs, hit, len(output.logits))] = float("nan")
        return output


def _sampled_rows(inputs: StepInputs, hit: torch.Tensor, num_rows: int) -> torch.Tensor:
    """[num_rows] bool: the rows with logits that have one of these tokens."""
    starts = inputs.attention.query_start_loc
    tokens = torch.arange(len(hit), device=hit.device)
    row_of_token = torch.bucketize(tokens, starts[1:].to(torch.int64), right=True)
    is_hit = torch.zeros(len(starts), dtype=torch.bool, device=hit.device)
    is_hit[row_of_token[hit]] = True
    return is_hit[row_of_token[inputs.logits_indices[:num_rows]]]
