"""The KV pool: one tensor, block-major, so that a block of all layers is one contiguous extent."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

_ALIGNMENT: Final = 64  # bytes; a cache line, and the widest vector register


class KvCache:
    """Keys and values of all layers.

    `tensor` is [num_blocks + 1, num_layers, 2, num_kv_heads, block_size, head_dim]. The last block is
    scratch: what must not be stored is written there (see kernels.rotary_kv_write), and no sequence owns it.
    """

    def __init__(
        self,
        num_blocks: int,
        num_layers: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        on_layer: Callable[[], None] | None = None,
    ) -> None:
        """`on_layer` is called whenever a layer's share is asked for, so once a layer in each step."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks + 1, num_layers, 2, num_kv_heads, block_size, head_dim)
        self.tensor = _zeros(shape, dtype, device)
        self._layers = self.tensor.unbind(1)
        self._on_layer = on_layer

    def layer(self, index: int) -> torch.Tensor:
        """A layer's share, a view: [num_blocks + 1, 2, num_kv_heads, block_size, head_dim]."""
        if self._on_layer is not None:
            self._on_layer()
        return self._layers[index]

    @property
    def num_bytes(self) -> int:
        """Size of the pool."""
        return self.tensor.numel() * self.tensor.element_size()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU the system gives pages only as blocks are first used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)
