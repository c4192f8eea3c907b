"""What plans change on the device, against a model in plain Python; how often the device hears of it."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from pillion.actors.gpu_worker import table_writes
from pillion.actors.gpu_worker.block_tables import BlockTables
from pillion.actors.gpu_worker.cuda_graphs import GraphTable
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.input_preparer import InputPreparer
from pillion.actors.gpu_worker.request_states import RequestStates
from pillion.actors.gpu_worker.warm_up import GREEDY
from pillion.messages.codec import pack_ids
from pillion.messages.steps import NewSequence, StepPlan
from pillion.runtime.errors import InvariantBroken

NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS = 7, 3000, 4, 9000
NO_PLAN = StepPlan(
    epoch=1, plan_id=0, repeat=1, slots=b"", generations=b"", starts=b"", num_tokens=b""
)


class Tables:
    """The state of all slots on a device, and what it should be."""

    def __init__(self, device: torch.device) -> None:
        on = Device(device)
        self.states = RequestStates(on, NUM_SLOTS, MAX_MODEL_LEN)
        self.blocks = BlockTables(on, NUM_SLOTS, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS)
        no_inputs: Any = None
        self.preparer = InputPreparer(
            on, self.states, self.blocks, GraphTable(), no_inputs, no_inputs
        )
        # tokens, computed tokens, most tokens, stop ids, blocks
        self.tenants: dict[int, tuple[list[int], int, int, list[int], list[int]]] = {}

    def check(self) -> None:
        """Everything that a step could read of any slot."""
        states, blocks = self.states, self.blocks
        finished = [slot not in self.tenants for slot in range(NUM_SLOTS)]
        assert states.finished.tolist() == [*finished, True]
        assert states.finished_np.tolist() == finished
        for slot in range(NUM_SLOTS):
            if slot not in self.tenants:
                assert blocks.capacity[slot] == blocks.capacity_np[slot] == 0
                continue
            tokens, computed, most, stops, block_ids = self.tenants[slot]
            assert states.token_table[slot, : len(tokens)].tolist() == tokens
            assert states.num_computed[slot] == states.num_computed_np[slot] == computed
            assert states.num_known[slot] == states.num_known_np[slot] == len(tokens)
            assert states.max_total[slot] == most
            assert states.stop_ids[slot, : len(stops)].tolist() == stops
            assert (states.stop_ids[slot, len(stops) :] == -1).all()
            assert blocks.table[slot, : len(block_ids)].tolist() == block_ids
            assert blocks.capacity[slot] == blocks.capacity_np[slot] == BLOCK_SIZE * len(block_ids)

    def plan(self, chance: random.Random) -> StepPlan:
        """Releases some, seats some, also where it has just released, and gives blocks to some."""
        released = [slot for slot in range(NUM_SLOTS) if chance.random() < 0.3]
        for slot in released:
            self.tenants.pop(slot, None)
        free = [slot for slot in range(NUM_SLOTS) if slot not in self.tenants]
        new = [self.seat(slot, chance) for slot in free if chance.random() < 0.5]
        appends = []
        for slot in self.tenants:
            more = self.some_ids(chance, NUM_BLOCKS, chance.choice((0, 0, 1, 3)))
            appends += [(slot, block) for block in more]
        chance.shuffle(appends)
        for slot, block in appends:
            self.tenants[slot][-1].append(block)
        return replace(
            NO_PLAN,
            new_sequences=new,
            released_slots=pack_ids(released),
            append_slots=pack_ids(slot for slot, _ in appends),
            append_groups=pack_ids(0 for _ in appends),
            append_blocks=pack_ids(block for _, block in appends),
        )

    def seat(self, slot: int, chance: random.Random) -> NewSequence:
        tokens = self.some_ids(chance, 50_000, chance.choice((1, 5, 1024, 1025, 2900)))
        computed, most = chance.randrange(len(tokens)), chance.choice((4, 5000))
        stops = self.some_ids(chance, 50_000, chance.choice((0, 1, 3)))
        block_ids = self.some_ids(chance, NUM_BLOCKS, chance.choice((0, 1, 600)))
        most_tokens = min(len(tokens) + most, MAX_MODEL_LEN)
        self.tenants[slot] = tokens, computed, most_tokens, stops, list(block_ids)
        return NewSequence(
            sequence_id=slot,
            slot=slot,
            generation=0,
            token_ids=pack_ids(tokens),
            num_prompt_tokens=len(tokens),
            num_computed_tokens=computed,
            block_ids=[pack_ids(block_ids)],
            sampling=replace(GREEDY, max_tokens=most, stop_token_ids=stops),
        )

    @staticmethod
    def some_ids(chance: random.Random, limit: int, count: int) -> list[int]:
        return [chance.randrange(limit) for _ in range(count)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def tables(request: pytest.FixtureRequest) -> Iterator[Tables]:
    """On each device; on a card nothing may wait for it."""
    found = Tables(torch.device(request.param))
    if request.param == "cpu":
        yield found
        return
    found.preparer.apply(replace(NO_PLAN, released_slots=pack_ids([0])))  # loads the kernel
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield found
    torch.cuda.set_sync_debug_mode("default")


@torch.inference_mode()
def test_any_plans_change_what_they_say(tables: Tables) -> None:
    chance = random.Random(5)
    num_seated = 0
    for _ in range(25):
        plan = tables.plan(chance)
        tables.preparer.apply(plan)
        num_seated += len(plan.new_sequences)
        if chance.random() < 0.5:  # else the next plan is applied behind this one, not yet done
            look(tables)
    look(tables)
    tables.preparer.release(tables.states.occupied())
    tables.tenants.clear()
    look(tables)
    assert num_seated > 40


def look(tables: Tables) -> None:
    """Waits, which only this may."""
    is_cuda = tables.states.finished.is_cuda
    if is_cuda:
        torch.cuda.set_sync_debug_mode("default")
    tables.check()
    if is_cuda:
        torch.cuda.set_sync_debug_mode("error")


def test_a_plan_is_one_copy_and_one_launch_whatever_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uploads, launches = [], []
    upload, launch = Device.upload, table_writes.write_tables

    def note_upload(self: Device, array: Any) -> torch.Tensor:
        uploads.append(array)
        return upload(self, array)

    def note_launch(*arguments: Any) -> None:
        launches.append(arguments)
        launch(*arguments)

    monkeypatch.setattr(Device, "upload", note_upload)
    monkeypatch.setattr(table_writes, "write_tables", note_launch)
    found, chance = Tables(torch.device("cpu")), random.Random(1)
    uploads.clear()  # what the preparer begins with
    found.preparer.apply(NO_PLAN)
    assert len(uploads) == len(launches) == 0
    for number in range(10):
        found.preparer.apply(found.plan(chance))
        assert len(uploads) == len(launches) == number + 1
    found.check()


def test_no_two_pieces_of_a_launch_write_the_same_word(monkeypatch: pytest.MonkeyPatch) -> None:
    found, chance = Tables(torch.device("cpu")), random.Random(2)

    def count(tables: Any, staged: torch.Tensor, num_pieces: int) -> None:
        times = [torch.zeros(words.shape, dtype=torch.int32) for words in tables.words]
        for row, table, first, _, length in staged[: 5 * num_pieces].view(-1, 5).tolist():
            times[table][row, first : first + length] += 1
        most.append(max(int(each.max()) for each in times))

    most: list[int] = []
    monkeypatch.setattr(table_writes, "write_tables", count)
    for _ in range(20):
        found.preparer.apply(found.plan(chance))
    released = replace(NO_PLAN, released_slots=pack_ids([3, 3, 1, 3]))
    found.preparer.apply(released)
    assert most == [1] * 21


def test_two_sequences_for_one_slot_are_refused() -> None:
    found = Tables(torch.device("cpu"))
    new = found.seat(2, random.Random(0))
    with pytest.raises(InvariantBroken, match="the slot belongs to sequence 2"):
        found.preparer.apply(replace(NO_PLAN, new_sequences=[new, new]))


def test_a_slot_gets_as_many_blocks_as_its_table_holds() -> None:
    found = Tables(torch.device("cpu"))
    most = MAX_MODEL_LEN // BLOCK_SIZE
    slots, groups = np.array([1, 2] * most, dtype=np.int32), np.zeros(2 * most, dtype=np.int32)
    blocks = np.arange(2 * most, dtype=np.int32)
    full = replace(
        NO_PLAN,
        append_slots=slots.tobytes(),
        append_groups=groups.tobytes(),
        append_blocks=blocks.tobytes(),
    )
    found.preparer.apply(full)
    assert found.blocks.table[:3].tolist()[1:] == [blocks[::2].tolist(), blocks[1::2].tolist()]
    one_more = {"append_groups": pack_ids([0]), "append_blocks": pack_ids([7])}
    with pytest.raises(InvariantBroken, match=f"slot 2 gets more than {most} blocks"):
        found.preparer.apply(replace(NO_PLAN, append_slots=pack_ids([2]), **one_more))


def test_what_an_error_holds_up_goes_with_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found, chance = Tables(torch.device("cpu")), random.Random(3)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(table_writes, "write_tables", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            found.preparer.apply(found.plan(chance))
    assert len(found.tenants) > 0
    found.preparer.apply(replace(NO_PLAN, released_slots=pack_ids([NUM_SLOTS - 1])))
    found.tenants.pop(NUM_SLOTS - 1, None)
    found.check()
