"""The KV pool: one tensor, block-major, so that a block of all layers is one contiguous extent."""

import torch


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
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks + 1, num_layers, 2, num_kv_heads, block_size, head_dim)
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        self._layers = self.tensor.unbind(1)

    def layer(self, index: int) -> torch.Tensor:
        """A layer's share, a view: [num_blocks + 1, 2, num_kv_heads, block_size, head_dim]."""
        return self._layers[index]

    @property
    def num_bytes(self) -> int:
        """Size of the pool."""
        return self.tensor.numel() * self.tensor.element_size()
