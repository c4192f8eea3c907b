"""The grid that every implementation is tested on."""

from typing import Final

import torch

# Rows, ffn.
SHAPES: Final[list[tuple[int, int]]] = [(0, 64), (1, 1536), (3, 7), (33, 256)]
# Type and the relative error that it allows.
TOLERANCES: Final = {torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
