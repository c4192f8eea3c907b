"""A whole daemon without weights: launcher, sockets, tokenizer and gateway are real, the worker is fake."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pillion.messages.control import ActorStatus, DaemonStatus, StatusRequest
from pillion.runtime.config import EngineConfig
from pillion.runtime.control_socket import ControlClient
from pillion.runtime.daemon import locate_model
from pillion.runtime.paths import RunDir
from pillion.runtime.process import child_environment

SCRIPT: Final = Path(__file__).parents[1] / "ring" / "fake_worker_daemon.py"
START_DEADLINE_S: Final = 60.0
END_DEADLINE_S: Final = 20.0
NAME: Final = "ring"


class RingDaemon:
    """Ready when it is made. `http` is the path of its HTTP socket."""

    def __init__(
        self,
        model: Path,
        root: Path,
        step_us: int = 300,
        name: str = NAME,
        prefix: Sequence[str] = (),  # a command that runs the daemon's
        **settings: Any,
    ) -> None:
        self.http = root / f"{name}.sock"
        settings = {"max_model_len": 100_000, "http_uds": str(self.http), **settings}
        config = locate_model(EngineConfig(model=str(model), name=name, **settings), progress=False)
        lifetime_fd, self._lifetime_fd = os.pipe()
        our_ready_fd, ready_fd = os.pipe()
        self.process = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                str(SCRIPT),
                f"--step-us={step_us}",
                f"--config={config.to_json().decode()}",
                f"--lifetime-fd={lifetime_fd}",
                f"--ready-fd={ready_fd}",
            ],
            pass_fds=(lifetime_fd, ready_fd),
            env={**child_environment(), "PILLION_RUNTIME_DIR": str(root)},
        )
        os.close(lifetime_fd)
        os.close(ready_fd)
        self.directory = RunDir(root / name)
        with open(our_ready_fd) as outcome:
            assert select.select([outcome], [], [], START_DEADLINE_S)[0], "the daemon's word"
            assert json.loads(outcome.readline())["ready"]

    def status(self) -> DaemonStatus:
        """What the launcher says."""
        client = ControlClient(self.directory)
        try:
            status = client.ask(StatusRequest())
        finally:
            client.close()
        assert isinstance(status, DaemonStatus)
        return status

    def actors(self) -> dict[str, ActorStatus]:
        """The actors by name."""
        return {actor.name: actor for actor in self.status().actors}

    def is_at_rest(self) -> bool:
        """Whether no request is open, runs or holds a block, as far as has been reported."""
        actors = self.actors()
        return all(
            actors[actor].gauges.get(gauge) == 0
            for actor, gauge in (
                ("detokenizer", "open_requests"),
                ("scheduler", "running"),
                ("scheduler", "waiting"),
                ("kv_manager", "referenced_blocks_0"),
            )
        )

    def terminate(self) -> None:
        """As a service manager ends it."""
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends what is left."""
        os.close(self._lifetime_fd)
        self.process.wait(END_DEADLINE_S)


StartRing = Callable[..., RingDaemon]


async def until(what: str, holds: Callable[[], bool], deadline_s: float = END_DEADLINE_S) -> None:
    """Waits for a condition. Raises AssertionError with its name if it does not come true in time."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}, within {deadline_s:g} s"
        await asyncio.sleep(0.05)
