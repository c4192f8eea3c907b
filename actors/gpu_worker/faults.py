"""Faults in steps, on demand, for tests: what a broken kernel, bad weights or a dying device would do.

Flags (runtime/fault_flags.py). When layer K is about to write its KV, after those before it have: `raise_in_layer=K`,
`delay_in_layer=K:ms=N`, `spin_in_layer=K` for ever, `crash_in_layer=K` by SIGSEGV or another `signal=N`. `nan_in_row`
makes the logits of rows NaN; `lose_device` stands for an error that breaks the device's context. Conditions, all of
which must hold: `step=N`, only in the Nth step from 0; `token=T`, only with this token among the inputs;
`position=P`, only with this position among them. `times=N` ends it after N faults in one life; `epoch=N` says in which
life, in each if not said.
"""

import logging
import os
import signal
import time
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

logger = logging.getLogger(__name__)

_LAYER_FAULTS: Final = frozenset(
    {"raise_in_layer", "delay_in_layer", "spin_in_layer", "crash_in_layer"}
)
_FAULTS: Final = _LAYER_FAULTS | {"nan_in_row", "lose_device"}
_CONDITIONS: Final = frozenset({"step", "token", "position", "times", "epoch", "ms", "signal"})


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


class _FaultyCache(KvCache):
    """A view of a cache at one of whose layers something happens."""

    def __init__(self, cache: KvCache, flag: FaultFlag) -> None:
        self.num_blocks, self.block_size, self.tensor = (
            cache.num_blocks,
            cache.block_size,
            cache.tensor,
        )
        self._cache = cache
        self._flag = flag

    def layer(self, index: int) -> torch.Tensor:
        """As KvCache, unless it is the layer of the fault."""
        if index == (self._flag.value or 0):
            _happen(self._flag)
        return self._cache.layer(index)


def _happen(flag: FaultFlag) -> None:
    match flag.fault:
        case "raise_in_layer":
            raise InjectedFault(f"layer {flag.value or 0} fails")
        case "delay_in_layer":
            time.sleep(flag.conditions.get("ms", 0) / 1000)
        case "spin_in_layer":
            logger.warning("layer %d spins from now on", flag.value or 0)
            while True:
                pass
        case "crash_in_layer":
            os.kill(os.getpid(), flag.conditions.get("signal", signal.SIGSEGV))


class FaultyExecutor(ModelExecutor):
    """A ModelExecutor whose steps fail as flags say. It waits for the device, as nothing else here may.

    Raises ConfigError for a fault or condition that there is not.
    """

    def __init__(
        self, model: Model, kv_cache: KvCache, flags: Sequence[FaultFlag], epoch: int = 1
    ) -> None:
        super().__init__(model, kv_cache)
        for flag in flags:
            unknown = {flag.fault} - _FAULTS | flag.conditions.keys() - _CONDITIONS
            if unknown:
                raise ConfigError(f"fault_flags: the worker knows no {', '.join(sorted(unknown))}")
        self._faults = [
            _Fault(flag) for flag in flags if flag.conditions.get("epoch", epoch) == epoch
        ]
        self._num_steps = 0

    def execute(self, inputs: StepInputs, logits: torch.Tensor | None = None) -> ModelOutput:
        """As ModelExecutor, or a fault."""
        step, self._num_steps = self._num_steps, self._num_steps + 1
        cache, poisoned = self._kv_cache, []
        for fault in self._faults:
            hit = fault.tokens_hit(inputs, step)
            if hit is None:
                continue
            if fault.flag.fault == "lose_device":
                raise DeviceLost("the device is gone")
            if fault.flag.fault == "nan_in_row":
                poisoned.append(hit)
            else:
                cache = _FaultyCache(cache, fault.flag)
        if cache is self._kv_cache:
            output = super().execute(inputs, logits)
        else:
            output = ModelExecutor(self._model, cache).execute(replace(inputs, graph=None), logits)
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
