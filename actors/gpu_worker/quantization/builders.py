"""From the tensors of a checkpoint to products: which form a weight takes on which device."""

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import torch

from pillion.actors.gpu_worker.quantization.adaptive_linear import (
    ROWS,
    AdaptiveLinear,
    Forms,
    Plan,
    Seconds,
    fastest_plan,
    measure,
)
from pillion.actors.gpu_worker.quantization.cpu_forms import (
    Bfloat16Linear,
    Form,
    FourBitLinear,
    PackedLinear,
    can_keep_four_bits,
    works,
)
from pillion.actors.gpu_worker.quantization.linear import DenseLinear, Linear
from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight, StoredTensor

log = logging.getLogger(__name__)

# Weights of so many layers, or of so much memory in float32, are enough to compare forms.
_SAMPLE_LAYERS: Final = 6
_SAMPLE_BYTES: Final = 256 << 20
# Of the machine's memory, for all forms of all weights together.
_MEMORY_SHARE: Final = 0.5
_FOUR_BIT_BYTES: Final = 0.625  # per number, scales included
_BFLOAT16_BYTES: Final = 2
_FLOAT32_BYTES: Final = 4


class LinearBuilder(Protocol):
    """Makes the products of one model: of the first few layers, settles, then makes the others.

    `build` may be called by several threads at a time.
    """

    @property
    def embedding_dtype(self) -> torch.dtype:
        """The type of the embedding table, which a tied head shares."""

    def build(self, parts: Sequence[StoredTensor], bias: torch.Tensor | None) -> Linear:
        """One product with the parts' rows below each other; all parts have the same `in`."""

    def build_tied(self, table: torch.Tensor) -> Linear:
        """The product with a weight [out, in] that is in memory already and stays there."""

    def num_sample_layers(self, layer_weights: int) -> int:
        """Layers of so many weights to be built before `settle` is called for the first time."""

    def settle(self) -> None:
        """Decides what was left open for the products made so far. Called when nothing else runs."""


class DenseBuilder:
    """One form of every weight, in the type of the activations: always the same product."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.embedding_dtype = dtype
        self._device = device
        self._packs = device.type == "cpu" and dtype == torch.float32 and works("packed_float32")

    def build(self, parts: Sequence[StoredTensor], bias: torch.Tensor | None) -> Linear:
        """See `LinearBuilder.build`."""
        weight = stack(parts, self.embedding_dtype, self._device)
        return PackedLinear(weight, bias) if self._packs else DenseLinear(weight, bias)

    def build_tied(self, table: torch.Tensor) -> Linear:
        """See `LinearBuilder.build_tied`."""
        if self._packs:
            return PackedLinear(table)
        return DenseLinear(table, owned=False)

    def num_sample_layers(self, layer_weights: int) -> int:
        """See `LinearBuilder.num_sample_layers`."""
        return 0

    def settle(self) -> None:
        """See `LinearBuilder.settle`."""


class AdaptiveBuilder:
    """For float32 activations on a CPU whose products may be as exact as bfloat16: the fastest forms.

    The first weights get all forms, these are timed, and all further weights get the fastest ones only.
    """

    embedding_dtype = torch.bfloat16

    def __init__(self, bytes_per_weight: float) -> None:
        """`bytes_per_weight`: memory for all forms of a weight together, per number that it holds."""
        self._bytes_per_weight = bytes_per_weight
        self._seconds: dict[Forms, Seconds] = {}
        self._undecided: dict[Forms, list[AdaptiveLinear]] = defaultdict(list)
        self._lock = threading.Lock()

    def build(self, parts: Sequence[StoredTensor], bias: torch.Tensor | None) -> Linear:
        """See `LinearBuilder.build`."""
        in_features, out_features = parts[0].shape[1], sum(part.shape[0] for part in parts)
        four_bit = _stack_codes(parts) if can_keep_four_bits(out_features) else None
        names = self._available(has_codes=four_bit is not None)
        plan = self._plan(frozenset(names))
        wanted = names if plan is None else frozenset(plan)
        dense: dict[torch.dtype, torch.Tensor] = {}
        forms: dict[Form, Linear] = {}
        for name in wanted:
            if name == "four_bit" and four_bit is not None:
                forms[name] = FourBitLinear(four_bit, bias)
                continue
            dtype = torch.float32 if name == "packed_float32" else torch.bfloat16
            if dtype not in dense:
                dense[dtype] = _dense(parts, four_bit, dtype)
            forms[name] = _form(name, dense[dtype], bias)
        return self._adaptive(in_features, forms, plan)

    def build_tied(self, table: torch.Tensor) -> Linear:
        """See `LinearBuilder.build_tied`."""
        names = self._available(has_codes=False)
        plan = self._plan(frozenset(names))
        forms: dict[Form, Linear] = {"bfloat16": Bfloat16Linear(table, owned=False)}
        for name in names if plan is None else frozenset(plan):
            if name != "bfloat16":
                weight = table.float() if name == "packed_float32" else table
                forms[name] = PackedLinear(weight)
        return self._adaptive(table.shape[1], forms, plan)

    def num_sample_layers(self, layer_weights: int) -> int:
        """See `LinearBuilder.num_sample_layers`."""
        return max(1, min(_SAMPLE_LAYERS, _SAMPLE_BYTES // (4 * layer_weights)))

    def settle(self) -> None:
        """See `LinearBuilder.settle`."""
        # The largest sets first: what was measured for them holds for their subsets.
        for forms in sorted(self._undecided, key=len, reverse=True):
            linears = self._undecided[forms]
            plan = self._plan(forms)
            if plan is None:
                self._seconds[forms] = measure(linears)
                plan = fastest_plan(self._seconds[forms], forms)
            log.info("products of %s rows: %s", "/".join(map(str, ROWS)), ", ".join(plan))
            for linear in linears:
                linear.follow(plan)
        self._undecided.clear()

    def _plan(self, forms: Forms) -> Plan | None:
        """The plan for weights that have these forms, None before they were measured."""
        for measured, seconds in self._seconds.items():
            if forms <= measured:
                return fastest_plan(seconds, forms)
        return None

    def _available(self, *, has_codes: bool) -> list[Form]:
        """Forms that work here and fit; bfloat16 if nothing else does."""
        names: list[Form] = []
        if has_codes and works("four_bit"):
            names.append("four_bit")
        if not names or self._bytes_per_weight >= _FOUR_BIT_BYTES + _BFLOAT16_BYTES:
            names.append("bfloat16")
            if works("packed_bfloat16"):
                names.append("packed_bfloat16")
        if self._bytes_per_weight >= _BFLOAT16_BYTES + _FLOAT32_BYTES and works("packed_float32"):
            names.append("packed_float32")
        return names

    def _adaptive(
        self, in_features: int, forms: dict[Form, Linear], plan: Plan | None
    ) -> AdaptiveLinear:
        linear = AdaptiveLinear(in_features, forms)
        if plan is not None:
            linear.follow(plan)
            return linear
        with self._lock:
            self._undecided[frozenset(forms)].append(linear)
        return linear


def choose_builder(
    dtype: torch.dtype, device: torch.device, num_weights: int, *, is_auto: bool
) -> LinearBuilder:
    """How the products of a model with so many weights are made.

    `is_auto`: the user left the type to us, so that on a CPU weights may be rounded to bfloat16.
    """
    if device.type != "cpu" or dtype != torch.float32 or not is_auto:
        return DenseBuilder(dtype, device)
    return AdaptiveBuilder(memory_bytes() * _MEMORY_SHARE / num_weights)


def memory_bytes() -> int:
    """Memory of this machine, or of the control group that we run in if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(total, int(limit.read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return total


def stack(parts: Sequence[StoredTensor], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The parts' rows below each other, read one part after the other into place."""
    out = torch.empty(
        sum(part.shape[0] for part in parts), *parts[0].shape[1:], dtype=dtype, device=device
    )
    start = 0
    for part in parts:
        part.copy_to(out[start : start + part.shape[0]])
        start += part.shape[0]
    return out


def _stack_codes(parts: Sequence[StoredTensor]) -> FourBitWeight | None:
    """The parts' 4-bit codes, None unless all have them."""
    weights = []
    for part in parts:
        weight = part.four_bit()
        if weight is None:
            return None
        weights.append(weight)
    if len(weights) == 1:
        return weights[0]
    return FourBitWeight(
        torch.cat([each.codes for each in weights]),
        torch.cat([each.scales for each in weights]),
        torch.cat([each.offsets for each in weights]),
    )


def _dense(
    parts: Sequence[StoredTensor], four_bit: FourBitWeight | None, dtype: torch.dtype
) -> torch.Tensor:
    """The parts' numbers, from their codes if those are at hand."""
    if four_bit is None:
        return stack(parts, dtype, torch.device("cpu"))
    out = torch.empty(four_bit.codes.shape, dtype=dtype)
    four_bit.copy_to(out)
    return out


def _form(name: Form, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    if name == "bfloat16":
        return Bfloat16Linear(weight, bias)
    return PackedLinear(weight, bias)
