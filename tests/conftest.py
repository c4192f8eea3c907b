"""Fixtures that every folder of tests shares."""

from pathlib import Path

import pytest

from pillion.runtime.model_source import resolve_model


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, fetched once and cached."""
    return resolve_model("smollm2").path
