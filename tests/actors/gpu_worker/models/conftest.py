"""Fixtures of the model tests."""

from pathlib import Path
from typing import Any

import pytest
from tiny_models import FAMILIES, make_reference


@pytest.fixture(scope="session", params=FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """Each family: the reference model and the directory that it was saved to."""
    model = make_reference(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory)
    return model, directory
