"""Where Triton kernels are tested."""

import pytest
import torch

_DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself runs them"),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=_DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The GPU, or without one the CPU in Triton's interpreter."""
    return torch.device(request.param)
