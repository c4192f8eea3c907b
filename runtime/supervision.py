"""The launcher's children: the table of actors, how they start, how they end, and how one learns of it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pillion.runtime.child import Child, kill_group
from pillion.runtime.clock import now_ns
from pillion.runtime.config import EngineConfig
from pillion.runtime.http_settings import GATEWAY, is_gateway
from pillion.runtime.paths import RunDir
from pillion.runtime.process import actor_arguments, child_environment
from pillion.runtime.progress import ProgressPage, Sign

REAP_RETRY_S: Final = 0.02
REAP_DEADLINE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """One row of the table: an actor and the command that runs it."""

    name: str
    command: tuple[str, ...]  # followed by the arguments of runtime/process.py
    takes_along: tuple[
        str, ...
    ] = ()  # the actors whose lives make no sense after the end of this one's
    listening_fds: tuple[int, ...] = ()  # sockets that every life of it is given
    environment: tuple[tuple[str, str], ...] = ()  # unless the launcher's own says otherwise


# glibc and torch ask for large pages then. The kernel tells of a death when it has freed the memory: 25 ms
# in place of 75 for a worker of 700 MB.
LARGE_PAGES: Final = (
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    ("THP_MEM_ALLOC_ENABLE", "1"),
)


def module_spec(name: str, environment: tuple[tuple[str, str], ...] = ()) -> ActorSpec:
    """An actor that lives in its own module of this package."""
    # -P: the working directory must not shadow packages that the actor imports.
    command = (sys.executable, "-P", "-m", f"pillion.actors.{name}.process")
    return ActorSpec(name, command, environment=environment)


# In the order in which they start; they stop in reverse.
ACTORS: Final = (
    module_spec("kv_manager"),
    module_spec("scheduler"),
    module_spec("detokenizer"),
    module_spec("gpu_worker", LARGE_PAGES),
)


def with_gateways(
    specs: Sequence[ActorSpec], config: EngineConfig, listening_fds: tuple[int, ...]
) -> list[ActorSpec]:
    """The table with the actors that serve HTTP, if there are sockets to serve: "gateway", "gateway2", ..."""
    if not listening_fds:
        return list(specs)
    first = replace(module_spec(GATEWAY), listening_fds=listening_fds)
    names = [f"{GATEWAY}{number}" for number in range(2, config.http_gateways + 1)]
    others = [
        replace(first, name=name, command=(*first.command, f"--name={name}")) for name in names
    ]
    return [*specs, first, *others]


class Supervisor:
    """Starts the actors of a table, sees their ends and kills those that do not end by themselves."""

    def __init__(
        self,
        specs: Sequence[ActorSpec],
        run_dir: RunDir,
        lock_fd: int,
        on_exit: Callable[[Child], None],
    ) -> None:
        self._specs = specs
        self._run_dir = run_dir
        self._lock_fd = lock_fd
        self._on_exit = on_exit
        self._progress = ProgressPage(len(specs))
        self._lines = {spec.name: line for line, spec in enumerate(specs)}
        # Children see the end of this process as the end of the pipe: only we hold its writing end.
        self._lifetime_fd, self._our_lifetime_fd = os.pipe()
        self.children: dict[str, Child] = {}

    def start(self) -> None:
        """Starts every actor in the table's order. Raises OSError if a command cannot be run."""
        for spec in self._specs:
            self._start_child(spec, epoch=1)

    def restart(self, name: str) -> Child:
        """Starts the next life of an actor that is gone. Raises OSError if its command cannot be run."""
        (spec,) = (spec for spec in self._specs if spec.name == name)
        epoch = self.children[name].epoch
        self._run_dir.inbox(name, epoch).unlink(missing_ok=True)
        return self._start_child(spec, epoch + 1)

    def pids(self) -> set[int]:
        """The latest life of each actor, ended or not."""
        return {child.pid for child in self.children.values()}

    def is_alive(self, name: str, epoch: int) -> bool:
        """Whether this life of the actor has not ended."""
        child = self.children.get(name)
        return child is not None and child.epoch == epoch and child.alive

    def is_spare(self, child: Child) -> bool:
        """Whether requests are served without it: it is a gateway, and another one runs."""
        others = (other for name, other in self.children.items() if name != child.name)
        return is_gateway(child.name) and any(
            is_gateway(other.name) and other.state == "running" for other in others
        )

    def with_dependents(self, name: str) -> list[str]:
        """An actor and those whose lives end with its own, in the order in which they start."""
        found = {name}
        for _ in self._specs:
            found |= {
                other for spec in self._specs if spec.name in found for other in spec.takes_along
            }
        return [spec.name for spec in self._specs if spec.name in found]

    def _start_child(self, spec: ActorSpec, epoch: int) -> Child:
        peers = {peer.name: peer.epoch for peer in self.children.values() if peer.epoch > 1}
        line = self._lines[spec.name]
        self._progress.clear(line)
        arguments = actor_arguments(
            self._run_dir,
            epoch,
            self._lifetime_fd,
            self._lock_fd,
            peers,
            (self._progress.fd, line),
            spec.listening_fds,
        )
        process = subprocess.Popen(
            [*spec.command, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(
                self._lifetime_fd,
                self._lock_fd,
                self._progress.fd,
                *spec.listening_fds,
            ),
            env=dict(spec.environment) | child_environment(),
            # A Ctrl-C at the terminal is the launcher's to handle, and an actor's own children end with it.
            process_group=0,
        )
        child = Child(spec.name, epoch, process)
        self.children[spec.name] = child
        asyncio.get_running_loop().add_reader(child.pidfd, self._on_pidfd, child)
        return child

    def _on_pidfd(self, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(child.pidfd)
        os.close(child.pidfd)
        kill_group(child)  # the number is the group's as long as its leader has not been waited for
        self._reap(child, now_ns())

    def _reap(self, child: Child, since_ns: int) -> None:
        """Takes the exit status; a debugger that traces the child can withhold it for a while."""
        status = child.process.poll()
        if status is None and now_ns() - since_ns < REAP_DEADLINE_S * 1e9:
            loop = asyncio.get_running_loop()
            loop.call_later(REAP_RETRY_S, self._reap, child, since_ns)
            return
        child.state = "exited" if status == 0 else "failed"
        child.gone.set()
        self._on_exit(child)

    def sign_of(self, child: Child) -> Sign:
        """The latest sign of life of a child that lives."""
        return self._progress.read(self._lines[child.name])

    def stopping_order(self) -> list[Child]:
        """The children that live, the last one started first."""
        return [child for child in reversed(self.children.values()) if child.alive]

    def kill(self, children: Iterable[Child]) -> None:
        """Sends SIGKILL to those that live."""
        for child in children:
            if child.alive:
                kill_group(child)

    async def wait_gone(self, children: Iterable[Child], timeout_s: float) -> list[Child]:
        """Waits for the ends of these children. Returns those that still live after the timeout."""
        waits = [asyncio.ensure_future(child.gone.wait()) for child in children if child.alive]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            for wait in pending:
                wait.cancel()
        return [child for child in children if child.alive]

    def give_up_on(self, children: Iterable[Child], deadline_s: float) -> str:
        """Takes these for lost, whom not even SIGKILL has ended. Returns the line that says so."""
        for child in children:
            child.state = "lost"
        names = ", ".join(f"{child.name} (pid {child.pid})" for child in children)
        return f"SIGKILL has not ended {names} within {deadline_s:g} s; its device may be lost"

    def close(self) -> None:
        """Closes the lifetime pipe: whoever still lives ends now, unless nothing can end it."""
        self._progress.close()
        os.close(self._our_lifetime_fd)
        os.close(self._lifetime_fd)
