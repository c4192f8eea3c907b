"""Forms of a weight for float32 activations on a CPU. All take and give float32.

Which is fastest depends on the CPU and on the number of rows; `benchmarks/cpu_linear.py` shows it.
"""

from typing import Any, Final

import torch
from torch.nn.functional import linear

from pillion.actors.gpu_worker.quantization.stored_tensor import FourBitWeight

_GROUP: Final = 32  # codes that share a scale
_OUT_MULTIPLE: Final = 16  # torch packs 4-bit weights in bundles of so many rows


class PackedLinear:
    """A float32 or bfloat16 weight in oneDNN's own order, which saves reordering it in every product.

    With a bfloat16 weight the activations are rounded to bfloat16; sums are float32 in both.
    """

    # [out, in] float32 or bfloat16, not kept; [out] float32
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.num_bytes = weight.nbytes
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
    """A bfloat16 weight as it is: half the memory to read, which is what counts for one or two rows."""

    # [out, in] bfloat16; [out] float32. A weight that is not owned is counted by someone else.
    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, owned: bool = True
    ) -> None:
        self.num_bytes = weight.nbytes if owned else 0
        self._weight = weight
        self._bias = bias if bias is None else bias.bfloat16()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        return linear(x.bfloat16(), self._weight, self._bias).to(x.dtype)


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
        self.num_bytes = self._packed.nbytes + self._scales_and_zeros.nbytes

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.apply`."""
        out = torch._weight_int4pack_mm_for_cpu(
            x.bfloat16(), self._packed, _GROUP, self._scales_and_zeros
        ).to(x.dtype)
        return out if self._bias is None else out.add_(self._bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN takes packed weights of this type."""
    operators: Any = torch.ops.mkldnn
    if not hasattr(operators, "_reorder_linear_weight"):
        return False
    return dtype != torch.bfloat16 or bool(operators._is_mkldnn_bf16_supported())


def can_keep_four_bits(out_features: int) -> bool:
    """Whether torch takes a 4-bit weight with so many rows."""
    return out_features % _OUT_MULTIPLE == 0
