"""Fixtures that every folder of tests shares."""

import importlib.util
import os
from pathlib import Path

import pytest

from pillion.runtime.model_source import resolve_model

# Without a CUDA device the Triton kernels run in Triton's interpreter, which wants to be told before it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# `make test-gpu` runs where hypothesis may be missing.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # How long an example takes says something of the machine, not of the property.
    settings.register_profile(
        "pillion", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("pillion")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, fetched once and cached."""
    return resolve_model("smollm2").path
