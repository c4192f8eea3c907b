"""GET /metrics: the numbers of the whole daemon, whichever gateway answers."""

import time
from typing import Final

from pillion.actors.gateway.actor_families import write_actors, write_all_counters
from pillion.actors.gateway.daemon_numbers import DaemonNumbers
from pillion.actors.gateway.engine_families import write_engine
from pillion.actors.gateway.exposition import Exposition
from pillion.actors.gateway.http_families import write_http, write_process
from pillion.actors.gateway.vllm_families import write_vllm
from pillion.messages.control import DaemonStatus
from pillion.runtime.config import EngineConfig

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


def metrics_page(status: DaemonStatus, config: EngineConfig, model: str, ready: bool) -> bytes:
    """The page."""
    page, numbers = Exposition(), DaemonNumbers(status)
    page.one("pillion_ready", "gauge", "Whether a request would run now", int(ready))
    page.one("pillion_build_info", "gauge", "Pillion's version", 1, {"version": status.version})
    write_http(page, numbers)
    write_process(page, numbers, time.time())
    write_engine(page, numbers)
    write_actors(page, numbers)
    write_all_counters(page, numbers)
    write_vllm(page, numbers, config, model)
    return page.text()
