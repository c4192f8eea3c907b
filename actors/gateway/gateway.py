"""What every route of the gateway shares."""

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pillion.actors.gateway.access import ApiKeys, api_keys
from pillion.actors.gateway.daemon_link import DaemonLink
from pillion.actors.gateway.exchange import ClientGone, Exchange
from pillion.actors.gateway.generation import Generation
from pillion.actors.gateway.http_errors import HttpError, http_error_of
from pillion.actors.gateway.metrics import Metrics
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import RunDir
from pillion.runtime.stats import StatsReporter


class Gateway:
    """The daemon behind the routes, and what is counted of them."""

    def __init__(
        self, config: EngineConfig, run_dir: RunDir, name: str = "gateway", epoch: int = 1
    ) -> None:
        """Raises ConfigError for API keys that cannot be read."""
        self.run_dir = run_dir
        self.link = DaemonLink(run_dir.client_socket)
        self.metrics = Metrics()
        self.stats = StatsReporter(name, epoch, self.metrics)
        self.keys: ApiKeys = api_keys(config)
        self.created = int(time.time())
        self.config = config

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        geometry = self.link.geometry
        return self.config.served_model_name or (
            self.config.model if geometry is None else geometry.model_name
        )

    def check_model(self, model: str | None) -> None:
        """Raises HttpError 404 for a model that is not served; None means the one that is."""
        if model is not None and model != self.model_name:
            raise HttpError(
                404,
                f"the model {model!r:.200} is not served here; {self.model_name!r} is",
                code="model_not_found",
                param="model",
            )

    @asynccontextmanager
    async def counted(self, exchange: Exchange) -> AsyncIterator[Generation]:
        """Around one generation: it is counted once as received and once by how it ends."""
        self.metrics.begin()
        generation = Generation(None if exchange.span is None else exchange.span.context)
        try:
            yield generation
        except BaseException as error:
            if isinstance(error, ClientGone) or not isinstance(error, Exception):
                self.metrics.end(generation, "cancelled")
            else:
                status = http_error_of(error).status
                refused = status < 500 or (status == 503 and not generation.num_output_tokens)
                self.metrics.end(generation, "refused" if refused else "failed")
            raise
        self.metrics.end(generation, "finished")


def new_id(prefix: str) -> str:
    """An id for an answer; `prefix` with its separator, as the API has them."""
    return f"{prefix}{uuid.uuid4().hex}"
