"""Whether requests are traced, and whether what that needs is installed."""

import importlib.util
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.http_settings import is_http_url

ENDPOINT_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

logger = logging.getLogger(__name__)


def with_tracing(config: EngineConfig, environment: Mapping[str, str]) -> EngineConfig:
    """The configuration with the collector that the environment names, unless it has one.

    Raises ConfigError that says what to install, if the configuration asks for traces and a package is missing.
    """
    named = environment.get(ENDPOINT_VARIABLE)
    if config.otlp_endpoint is None and not named:
        return config
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing and config.otlp_endpoint is not None:
        raise ConfigError(
            f"otlp_endpoint needs {', '.join(missing)}: run pip install 'pillion[otel]'"
        )
    if config.otlp_endpoint is None and not is_http_url(str(named)):
        logger.warning("%s is ignored: it is no URL of http or https", ENDPOINT_VARIABLE)
        return config
    if missing:
        logger.warning("%s is ignored: pip install 'pillion[otel]'", ENDPOINT_VARIABLE)
        return config
    return msgspec.structs.replace(config, otlp_endpoint=config.otlp_endpoint or named)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent
        return False
