"""Who asks for traces, and what becomes of that without the packages."""

import logging
import subprocess
import sys

import pytest

from pillion.runtime import tracing_settings
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.process import child_environment
from pillion.runtime.tracing_settings import ENDPOINT_VARIABLE, with_tracing

NAMED = {ENDPOINT_VARIABLE: "http://named"}


def test_the_setting_comes_before_the_environment() -> None:
    config = EngineConfig(model="m")
    assert with_tracing(config, {}) is config
    assert with_tracing(config, {ENDPOINT_VARIABLE: ""}) is config
    assert with_tracing(config, NAMED).otlp_endpoint == "http://named"
    own = EngineConfig(model="m", otlp_endpoint="http://own")
    assert with_tracing(own, NAMED).otlp_endpoint == "http://own"


def test_packages_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing_settings, "PACKAGES", ("not_there_at_all.sdk",))
    with pytest.raises(ConfigError, match=r"pip install 'pillion\[otel\]'"):
        with_tracing(EngineConfig(model="m", otlp_endpoint="http://own"), {})
    with caplog.at_level(logging.WARNING):
        assert with_tracing(EngineConfig(model="m"), NAMED).otlp_endpoint is None
    assert ENDPOINT_VARIABLE in caplog.text


def test_a_variable_that_is_no_url_is_ignored_and_told(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(model="m")
    with caplog.at_level(logging.WARNING):
        assert with_tracing(config, {ENDPOINT_VARIABLE: "collector:4317"}) is config
    assert f"{ENDPOINT_VARIABLE} is ignored" in caplog.text


def test_no_process_imports_a_tracing_library_by_itself() -> None:
    modules = (
        "pillion.runtime.launcher, pillion.actors.detokenizer.edge_loop,"
        " pillion.actors.gateway.gateway_loop, pillion.actors.scheduler.process, pillion"
    )
    code = f"import sys, {modules}; print([m for m in sys.modules if 'opentelemetry' in m])"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n"
