"""Faults on demand of any actor's process."""

from typing import Any

import pytest

from pillion.messages.control import Drain
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ModelError
from pillion.runtime.fault_flags import fault_flags_of
from pillion.runtime.memory_channels import MemoryPost, MemoryRing
from pillion.runtime.process_faults import InjectedFault, ProcessFaults


class Inbox:
    """Three messages."""

    def __init__(self) -> None:
        ring = MemoryRing()
        for number in range(3):
            MemoryPost(ring).send("a", Drain(deadline_ns=number))
        self._inbox = ring.bind("a", Drain)
        self.receive = self._inbox.receive
        self.drain = self._inbox.drain
        self.close = self._inbox.close

    def fileno(self) -> int:
        return -1


def faults(*flags: str, epoch: int = 1) -> ProcessFaults:
    return ProcessFaults(EngineConfig(model="fake", fault_flags=flags), "a", epoch)


def numbers(messages: list[Any]) -> list[int]:
    return [message.deadline_ns for message in messages]


def test_without_flags_the_inbox_is_the_inbox_itself() -> None:
    inbox = Inbox()
    assert faults("b:drop_message").around(inbox) is inbox
    assert faults("a:drop_message:epoch=2").around(inbox) is inbox
    assert faults("a:a_fault_of_its_own").around(inbox) is inbox


def test_the_message_that_was_chosen_is_lost() -> None:
    assert numbers(faults("a:drop_message:message=2").around(Inbox()).drain()) == [0, 2]
    inbox = faults("a:drop_message").around(Inbox())
    assert inbox.receive(None) is None
    assert numbers(inbox.drain()) == [1, 2]


@pytest.mark.parametrize(("epoch", "life", "happens"), [(0, 5, True), (5, 5, True), (5, 4, False)])
def test_faults_happen_in_the_life_that_was_chosen(epoch: int, life: int, happens: bool) -> None:
    inbox = faults(f"a:raise_in_loop:epoch={epoch}", epoch=life).around(Inbox())
    if happens:
        with pytest.raises(InjectedFault):
            inbox.drain()
    else:
        assert numbers(inbox.drain()) == [0, 1, 2]


def test_a_load_can_fail() -> None:
    faults("a:delay_load=0").at_load()
    with pytest.raises(ModelError, match="weights are missing"):
        faults("a:fail_load").at_load()


def test_an_actor_does_not_see_faults_that_all_have_as_its_own() -> None:
    config = EngineConfig(model="fake", fault_flags=("a:stop_loop", "a:raise_in_layer=1"))
    assert [flag.fault for flag in fault_flags_of(config, "a")] == ["raise_in_layer"]
