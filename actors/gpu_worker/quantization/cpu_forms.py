"""Forms of a weight for float32 activations on a CPU. All take and give float32.

Which is fastest depends on the CPU and on the number of rows; `benchmarks/cpu_linear.py` shows it.
"""

import logging
from functools import cache
from typing import Any, Final, Literal

import torch
from torch.nn.functional import linear

from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight

log = logging.getLogger(__name__)

Form = Literal["four_bit", "bfloat16", "packed_bfloat16", "packed_float32"]

_WIDEN_ROWS: Final = 16  # from here on, widening a bfloat16 weight costs less than it saves
_GROUP: Final = 32  # codes that share a scale
_OUT_MULTIPLE: Final = 16  # torch packs 4-bit weights in bundles of so many rows


class PackedLinear:
    """A float32 or bfloat16 weight in oneDNN's own order, which saves reordering it in every product.

    With a bfloat16 weight the activations are rounded to bfloat16; sums are float32 in both.
    """

    # [out, in] float32 or bfloat16, not kept; [out] float32
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.num_bytes = self.row_bytes = weight.nbytes
        self._dtype = weight.dtype
        self._bias = bias if bias is None else bias.to(weight.dtype)
        self._packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._product: Any = torch.ops.mkldnn._linear_pointwise

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        out: torch.Tensor = self._product(
            x.to(self._dtype), self._packed, self._bias, "none", [], ""
        )
        return out.to(x.dtype)


class Bfloat16Linear:
    """A bfloat16 weight as it is: half the memory to read, which is what counts for few rows.

    A CPU without instructions for bfloat16 falls behind with more rows, so there the weight is widened for
    the time of the product, and the activations stay as they are.
    """

    # [out, in] bfloat16; [out] float32. A weight that is not owned is counted by someone else.
    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, owned: bool = True
    ) -> None:
        self.row_bytes = weight.nbytes
        self.num_bytes = self.row_bytes if owned else 0
        self._weight = weight
        self._bias = bias
        self._rounded_bias = None if bias is None else bias.bfloat16()
        self._widens = not works("packed_bfloat16")

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        if self._widens and x.shape[0] >= _WIDEN_ROWS:
            return linear(x, self._weight.to(x.dtype), self._bias)
        return linear(x.bfloat16(), self._weight, self._rounded_bias).to(x.dtype)


class FourBitLinear:
    """The 4-bit codes of a GGUF file, unchanged; scales, offsets and activations rounded to bfloat16.

    torch computes (code - 8) * scale + zero; so zero = offset + 8 * scale.
    """

    # the file's codes, not kept; [out] float32
    def __init__(self, weight: FourBitWeight, bias: torch.Tensor | None = None) -> None:
        zeros = weight.offsets + 8 * weight.scales
        # [in / 32, out, 2]
        pairs = torch.stack((weight.scales, zeros), dim=-1).transpose(0, 1)
        self._scales_and_zeros = pairs.to(torch.bfloat16).contiguous()
        self._packed = torch._convert_weight_to_int4pack_for_cpu(weight.codes.to(torch.int32), 1)
        self._bias = bias
        self.num_bytes = self.row_bytes = self._packed.nbytes + self._scales_and_zeros.nbytes

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        out = torch._weight_int4pack_mm_for_cpu(
            x.bfloat16(), self._packed, _GROUP, self._scales_and_zeros
        ).to(x.dtype)
        return out if self._bias is None else out.add_(self._bias)


def can_keep_four_bits(out_features: int) -> bool:
    """Whether torch takes a 4-bit weight with so many rows."""
    return out_features % _OUT_MULTIPLE == 0


@cache
def works(form: Form) -> bool:
    """Whether products of this form are right on this machine, found by trying a small one.

    Packed and 4-bit products are internals of torch that depend on the CPU and on how torch was built.
    """
    operators: Any = torch.ops.mkldnn
    if form == "bfloat16":
        return True
    if form != "four_bit" and not hasattr(operators, "_reorder_linear_weight"):
        return False
    if form == "packed_bfloat16" and not operators._is_mkldnn_bf16_supported():
        return False
    # Small integers, which every form holds exactly.
    codes = (torch.arange(48 * 64) * 7 % 16).view(48, 64)
    weight = (codes - 8).float()
    x = (torch.arange(5 * 64) % 5 - 2).float().view(5, 64)
    try:
        product: FourBitLinear | PackedLinear
        if form == "four_bit":
            scales = torch.ones(48, 2)
            product = FourBitLinear(FourBitWeight(codes.to(torch.uint8), scales, -8 * scales))
        else:
            dtype = torch.float32 if form == "packed_float32" else torch.bfloat16
            product = PackedLinear(weight.to(dtype))
        results = [product.apply(x[:num_rows]) for num_rows in (1, 5)]
    except RuntimeError as error:
        log.info("%s products do not run on this machine: %s", form, error)
        return False
    expected = x @ weight.T
    # Sums are rounded to bfloat16 by the forms that compute in it.
    limit = 0.01 * float(expected.abs().max())
    return all(float((each - expected[: len(each)]).abs().max()) <= limit for each in results)
