"""Fixtures that every folder of tests shares."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pillion.runtime.model_source import resolve_model

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# Without a CUDA device the Triton kernels run in Triton's interpreter, which wants to be told before it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What a shell starts in the background ignores SIGINT, and so would all children: some tests send it to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chrome]":
    """One headless browser for all tests of the page."""
    from browser import start_chromium

    driver = start_chromium(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What long tests tell of themselves, in a property of that name, is shown also where they pass."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told":
                terminalreporter.write_line(f"{report.nodeid}: {value}")
