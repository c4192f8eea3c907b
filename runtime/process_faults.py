"""Faults that any actor's process can have, on demand, for tests: at its start, while it loads, in its loop.

Flags (fault_flags.py): `exit_at_start=STATUS`; `delay_load=MS` and `fail_load` of an actor that loads; in the loop
`stop_loop` (as by SIGSTOP), `spin_loop`, `raise_in_loop`, `delay_message=MS` and `drop_message`, all at the message
that `message=N` counts, 1 if not said. `epoch=N` says in which life: 1 if not said, 0 for each.
"""

import os
import signal
import time
from typing import Protocol, TypeVar

from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ModelError
from pillion.runtime.fault_flags import PROCESS_FAULTS, FaultFlag, all_flags_of

T = TypeVar("T")


class InjectedFault(RuntimeError):
    """A test wanted it."""


class AnyInbox(Protocol[T]):
    """What a channels.Inbox can do."""

    def receive(self, timeout_ns: int | None) -> T | None:
        """The next message, or None after the timeout."""

    def drain(self) -> list[T]:
        """All messages that are there."""

    def fileno(self) -> int:
        """A descriptor for an event loop."""

    def close(self) -> None:
        """Loses what was not received."""


class ProcessFaults:
    """The faults of one life of an actor; usually none."""

    def __init__(self, config: EngineConfig, actor: str, epoch: int) -> None:
        self._flags = [
            flag
            for flag in all_flags_of(config, actor)
            if flag.fault in PROCESS_FAULTS and flag.conditions.get("epoch", 1) in (0, epoch)
        ]
        self._num_messages = 0

    def at_start(self) -> None:
        """Before anything else happens."""
        for flag in self._flags:
            if flag.fault == "exit_at_start":
                os._exit(3 if flag.value is None else flag.value)

    def at_load(self) -> None:
        """Before the model is loaded. Raises ModelError if that is the fault."""
        for flag in self._flags:
            if flag.fault == "delay_load":
                time.sleep((flag.value or 0) / 1000)
            elif flag.fault == "fail_load":
                raise ModelError("the weights are missing, as a test wanted it")

    def around(self, inbox: AnyInbox[T]) -> AnyInbox[T]:
        """The inbox itself, or one at whose messages faults happen."""
        return _FaultyInbox(inbox, self) if self._flags else inbox

    def at_message(self) -> bool:
        """Before a message is taken. Returns whether it is."""
        self._num_messages += 1
        due = [f for f in self._flags if f.conditions.get("message", 1) == self._num_messages]
        return all(_takes(flag) for flag in due)


def _takes(flag: FaultFlag) -> bool:
    match flag.fault:
        case "stop_loop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "spin_loop":
            while True:
                pass
        case "raise_in_loop":
            raise InjectedFault("a message that a test has chosen")
        case "delay_message":
            time.sleep((flag.value or 0) / 1000)
        case "drop_message":
            return False
    return True


class _FaultyInbox(AnyInbox[T]):
    """Passes on what another inbox gets."""

    def __init__(self, inbox: AnyInbox[T], faults: ProcessFaults) -> None:
        self._inbox = inbox
        self._faults = faults

    def receive(self, timeout_ns: int | None) -> T | None:
        """As channels.Inbox; None also for a message that is dropped."""
        message = self._inbox.receive(timeout_ns)
        return message if message is not None and self._faults.at_message() else None

    def drain(self) -> list[T]:
        """As channels.Inbox."""
        return [message for message in self._inbox.drain() if self._faults.at_message()]

    def fileno(self) -> int:
        """As channels.Inbox."""
        return self._inbox.fileno()

    def close(self) -> None:
        """As channels.Inbox."""
        self._inbox.close()
