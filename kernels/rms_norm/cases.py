"""The grid that every implementation is tested on."""

from typing import Final

import torch

# Leading shape, hidden size.
SHAPES: Final[list[tuple[tuple[int, ...], int]]] = [
    ((0,), 64),
    ((1,), 576),
    ((3,), 7),
    ((5, 4), 128),
    ((33,), 2048),
]
# Type and the relative error that it allows.
TOLERANCES: Final = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
