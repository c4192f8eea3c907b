"""Scheduler, KV manager and fake worker as real processes; the test is their launcher and their text edge."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fake_edge import FakeEdge
from fake_model import FakeModel
from fake_worker_process import fake_worker_command

from pillion.messages.control import ActorFailed, ActorReady, EngineGeometry, Shutdown
from pillion.messages.inboxes import DetokenizerInbox, LauncherInbox
from pillion.runtime.channels import Inbox, Post
from pillion.runtime.clock import NS_PER_MS, now_ns
from pillion.runtime.config import EngineConfig
from pillion.runtime.paths import RunDir
from pillion.runtime.process import actor_arguments, child_environment

START_DEADLINE_S: Final = 60.0
STOP_DEADLINE_S: Final = 20.0


class ProcessRing:
    """Starts the processes on entry and ends them on exit."""

    def __init__(
        self, config: EngineConfig, vocab_size: int = 500, step_us: int = 0, check_kv: bool = True
    ) -> None:
        self.config = config
        model = FakeModel(vocab_size, config.max_model_len or 1024)
        self.edge = FakeEdge(model)
        self.geometry: EngineGeometry | None = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands = {
            name: (sys.executable, "-P", "-m", f"pillion.actors.{name}.process")
            for name in ("kv_manager", "scheduler")
        }
        self._commands["gpu_worker"] = fake_worker_command(vocab_size, step_us, check_kv)
        # Short, because a socket's name has room for 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="ring-", dir="/tmp")
        self._run_dir = RunDir(Path(self._directory.name))

    def __enter__(self) -> Self:
        self._run_dir.create()
        self._run_dir.config.write_bytes(self.config.to_json())
        self._launcher_inbox: Inbox[object] = Inbox.bind(
            self._run_dir.inbox("launcher"), LauncherInbox
        )
        self._edge_inbox: Inbox[object] = Inbox.bind(
            self._run_dir.inbox("detokenizer"), DetokenizerInbox
        )
        self._post = Post(self._run_dir)
        reading, self._lifetime_fd = os.pipe()
        lock_fd = os.open(self._run_dir.lock, os.O_CREAT | os.O_RDWR, 0o600)
        arguments = actor_arguments(self._run_dir, 1, reading, lock_fd)
        for name, command in self._commands.items():
            self.processes[name] = subprocess.Popen(
                [*command, *arguments], pass_fds=(reading, lock_fd), env=child_environment()
            )
        os.close(reading)
        os.close(lock_fd)
        self._wait_until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The end of the pipe ends whoever is still there.
        os.close(self._lifetime_fd)
        for process in self.processes.values():
            process.wait(STOP_DEADLINE_S)
        self._post.close()
        self._edge_inbox.close()
        self._launcher_inbox.close()
        self._directory.cleanup()

    def send_from_edge(self) -> None:
        """Sends what the edge has to say."""
        for destination, message in self.edge.outgoing:
            self._post.send(destination, message)
        self.edge.outgoing.clear()

    def serve(self, deadline_s: float) -> None:
        """Runs the edge until all its samples have ended. Raises RuntimeError at the deadline."""
        end = time.monotonic() + deadline_s
        self.send_from_edge()
        while self.edge.open_samples:
            message = self._edge_inbox.receive(100 * NS_PER_MS)
            if message is not None:
                self.edge.on_message(message, now_ns())  # type: ignore[arg-type]
            self._check_launcher_inbox()
            if time.monotonic() > end:
                raise RuntimeError(f"{len(self.edge.open_samples)} samples are still open")

    def shut_down(self) -> dict[str, int]:
        """Tells every actor to end; returns their exit statuses."""
        for name in self.processes:
            self._post.send(name, Shutdown())
        return {name: process.wait(STOP_DEADLINE_S) for name, process in self.processes.items()}

    def _wait_until_ready(self) -> None:
        waiting = set(self.processes)
        end = time.monotonic() + START_DEADLINE_S
        while waiting or self.geometry is None:
            for message in self._check_launcher_inbox(wait=True):
                if isinstance(message, ActorReady):
                    waiting.discard(message.actor)
                elif isinstance(message, EngineGeometry):
                    self.geometry = message
                    for actor in ("scheduler", "kv_manager"):
                        self._post.send(actor, message)
            if time.monotonic() > end:
                raise RuntimeError(f"{sorted(waiting)} did not start within {START_DEADLINE_S} s")

    def _check_launcher_inbox(self, wait: bool = False) -> list[object]:
        messages = self._launcher_inbox.drain()
        if wait and not messages:
            first = self._launcher_inbox.receive(100 * NS_PER_MS)
            messages = [] if first is None else [first]
        for message in messages:
            if isinstance(message, ActorFailed):
                raise RuntimeError(f"{message.actor} failed: {message.details}")
        return messages
