"""What a captured step reads against what a step without a graph reads."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from eager_graphs import add_eager_graphs

from pillion.actors.gpu_worker.captured_inputs import CapturedInputs
from pillion.actors.gpu_worker.cuda_graphs import (
    DecodeGraph,
    GraphTable,
    MixedGraph,
    mixed_shapes,
)
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.mixed_table import MixedShape, MixedTable, fill_mixed_table
from pillion.actors.gpu_worker.step_inputs import StepInputs

SHAPE = MixedShape(num_tokens=128, num_rows=6, num_prefill_rows=3)


def table_of(array: npt.NDArray[np.int32]) -> MixedTable[npt.NDArray[np.int32]]:
    return MixedTable.over(array, SHAPE)


class TestTable:
    def test_rows_tokens_and_pieces_of_queries(self) -> None:
        slots = np.array([4, 1, 0, 2], dtype=np.int32)
        starts, lengths = np.array([-1, -1, 0, 10]), np.array([1, 1, 70, 3])
        table = table_of(fill_mixed_table(SHAPE, slots, starts, lengths, scratch_slot=9))
        assert table.rows.T.tolist() == [
            [4, -1, 1], [1, -1, 1], [0, 0, 70], [2, 10, 3], [9, -1, 0], [9, -1, 0],
        ]  # fmt: skip
        assert table.query_start_loc.tolist() == [0, 1, 2, 72, 75, 75, 75]
        assert table.token_rows.tolist() == [0, 1] + [2] * 70 + [3] * 3 + [-1] * 53
        assert table.tile_rows.tolist() == [3, 2, 2, -1, -1]
        assert table.tile_starts.tolist()[:3] == [0, 64, 0]

    def test_a_full_step_fits(self) -> None:
        """As many pieces as there can be: each prefill row has one that is not full."""
        lengths = np.array([1, 1, 1, 1, 124 - 65, 65])
        slots, starts = np.arange(6, dtype=np.int32), np.array([-1, -1, -1, -1, 0, 0])
        table = table_of(fill_mixed_table(SHAPE, slots, starts, lengths, scratch_slot=9))
        assert (table.token_rows >= 0).all()
        assert (table.tile_rows >= 0).sum() == 3

    def test_every_part_is_aligned(self) -> None:
        array = np.zeros(SHAPE.size, dtype=np.int32)
        first = array.ctypes.data
        for name in ("rows", "query_start_loc", "token_rows", "tile_rows", "tile_starts"):
            assert (getattr(table_of(array), name).ctypes.data - first) % 128 == 0


class TestSampleRowsOfStepsWithoutAGraph:
    def test_there_are_few_numbers_of_them(self) -> None:
        graphs = GraphTable()
        # A start has run two sizes; the graphs that are there at first are small.
        graphs.add(DecodeGraph(8, torch.zeros(8), cast("Any", None)))
        assert graphs.padded_sample_rows(5) == 5  # of a probe, which has run none
        graphs.sample_rows = [16, 40]
        padded = {n: graphs.padded_sample_rows(n) for n in (0, 1, 2, 16, 17, 40)}
        assert padded == {0: 0, 1: 1, 2: 16, 16: 16, 17: 40, 40: 40}

    def test_those_beyond_its_own_change_nothing(
        self, make_rig: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def token_ids() -> list[bytes]:
            rig = make_rig()
            new = [rig.new(0, [1, 2, 3, 4, 5]), rig.new(1, [6, 7, 8]), rig.new(2, [9, 10])]
            outputs = rig.step([(0, 0, 5), (1, 0, 2)], new=new)
            outputs += rig.step([(0,), (1, 2, 3), (2, 0, 2)])
            return [output.token_ids for output in outputs]

        expected = token_ids()
        monkeypatch.setattr(GraphTable, "padded_sample_rows", lambda _, num_rows: num_rows + 3)
        assert token_ids() == expected


def test_inputs_equal_those_of_a_step_without_a_graph(make_rig: Any) -> None:
    rig = make_rig()
    rig.step([(0, 0, 5), (1, 0, 3)], new=[rig.new(0, [1, 2, 3, 4, 5]), rig.new(1, [6, 7, 8])])
    worker = rig.worker
    plan = rig.plan([(1,), (0,), (2, 0, 9), (3, 0, 4)], new=[
        rig.new(2, list(range(20, 32))), rig.new(3, [40, 41, 42, 43]),
    ])  # fmt: skip
    preparer = worker._steps._input_preparer
    preparer.apply(plan)
    rows = preparer.rows(plan, 0)
    states, blocks = worker._steps._states, preparer._blocks
    slots = np.concatenate([rows.decode_slots, rows.prefill_slots])
    table = fill_mixed_table(
        SHAPE, slots, np.array([-1, -1, 0, 0]), np.array([1, 1, 9, 4]), states.max_num_seqs
    )
    captured = CapturedInputs(Device(torch.device("cpu")), states, blocks).mixed_inputs(
        SHAPE, torch.from_numpy(table)
    )
    plain = preparer.prepare(rows)
    num_tokens = len(plain.input_ids)
    assert torch.equal(captured.input_ids[:num_tokens], plain.input_ids)
    assert torch.equal(captured.positions[:num_tokens], plain.positions)
    got, want = captured.attention, plain.attention
    assert torch.equal(got.slot_mapping[:num_tokens], want.slot_mapping)
    assert (got.slot_mapping[num_tokens:] == -1).all()
    assert got.seq_lens.tolist() == [*want.seq_lens.tolist()[:2], 0, 0, 0, 0]
    assert got.prefill_tiles is not None
    assert got.prefill_tiles.seq_lens.tolist() == [0, 0, 9, 4, 0, 0]
    assert torch.equal(got.block_table[:4, : want.block_table.shape[1]], want.block_table)
    assert torch.equal(captured.advance[:4], plain.advance)
    # A row whose prompt goes on is there, but samples nothing.
    assert captured.sample_valid.tolist() == [True, True, False, True, False, False]
    assert captured.logits_indices.tolist()[:4] == [0, 1, 10, 14]


class TestDecodeInputs:
    def test_they_are_kept_while_the_rows_and_their_tenants_stay(self, make_rig: Any) -> None:
        rig = make_rig()
        rig.step([(s, 0, 2) for s in range(3)], new=[rig.new(s, [1, 2]) for s in range(3)])
        steps = rig.worker._steps
        preparer, states = steps._input_preparer, steps._states
        scratch = np.full(4, states.max_num_seqs, dtype=np.int32)
        constants = preparer._eager.decode_constants(scratch)
        # Nothing is replayed here.
        step: Any = SimpleNamespace(inputs=preparer._eager.decode_inputs(constants))
        graph = DecodeGraph(4, constants.slots, step)
        captured = CapturedInputs(Device(torch.device("cpu")), states, preparer._blocks)

        def inputs_of(*slots: int) -> StepInputs:
            return captured.of_decode(graph, np.array(slots, dtype=np.int32))

        first = inputs_of(0, 2)
        assert inputs_of(0, 2) is first
        assert graph.slots.tolist() == [0, 2, *scratch[:2]]
        fewer = inputs_of(2)
        assert graph.slots.tolist() == [2, *scratch[:3]]
        assert fewer.sample_sequence_ids_np.tolist() == [1020]
        states.sequence_id_np[2] = (
            7  # of another scheduler's life, in which generations may be the same
        )
        assert inputs_of(2).sample_sequence_ids_np.tolist() == [7]
        states.generation_np[2] = 5
        assert inputs_of(2).sample_generations_np.tolist() == [5]

    def test_rows_that_are_the_same_array_may_have_other_tenants(self, make_rig: Any) -> None:
        rig = make_rig()
        add_eager_graphs(rig, sizes=(2,))
        rig.step([(0, 0, 2)], new=[rig.new(0, [1, 2])])
        preparer = rig.worker._steps._input_preparer
        graph, slots = preparer._graphs.find(1), np.array([0], dtype=np.int32)
        first = preparer._captured.of_decode(graph, slots)
        assert preparer._captured.of_decode(graph, slots) is first
        rig.step([], released=[0], new=[rig.new(0, [3, 4], generation=1)])
        other = preparer._captured.of_decode(graph, slots)
        assert other.sample_sequence_ids_np.tolist() == [1001]


class TestGraphTable:
    """Graphs come in any order: those that steps miss first."""

    def test_a_step_has_the_smallest_of_decode_rows(self) -> None:
        graphs, nothing = GraphTable(), cast("Any", None)
        for num_rows in (8, 40, 16, 32):
            graphs.add(DecodeGraph(num_rows, nothing, nothing))
        found = [graphs.find(num_rows) for num_rows in (1, 9, 17, 33, 41)]
        assert [graph and graph.num_rows for graph in found] == [8, 16, 32, 40, None]

    def test_a_step_has_the_smallest_with_room_for_its_prompts(self) -> None:
        graphs, nothing = GraphTable(), cast("Any", None)
        shapes = MixedShape(512, 40, 8), MixedShape(256, 16, 8), MixedShape(256, 40, 8)
        for shape in shapes:
            graphs.add_mixed(MixedGraph(shape, nothing, nothing))
        wanted = (200, 3, 2), (200, 30, 2), (300, 3, 2), (200, 30, 9)
        found = [graphs.find_mixed(*each) for each in wanted]
        expected = [shapes[1], shapes[2], shapes[0], None]
        assert [graph and graph.shape for graph in found] == expected


class TestShapes:
    def test_small_models_have_graphs_up_to_the_budget(self) -> None:
        shapes = mixed_shapes(256, 8192, 135_000_000)
        assert max(shape.num_tokens for shape in shapes) == 8192
        assert all(shape.num_rows <= shape.num_tokens for shape in shapes)
        assert {shape.num_rows for shape in shapes} == {16, 256}

    def test_large_steps_of_large_models_need_none(self) -> None:
        shapes = mixed_shapes(256, 8192, 8_000_000_000)
        assert max(shape.num_tokens for shape in shapes) == 1024

    def test_streams_are_padded_by_less_than_half(self) -> None:
        shapes = mixed_shapes(256, 8192, 135_000_000)
        tokens = [shape.num_tokens for shape in shapes if shape.num_rows == 256]
        assert tokens == sorted(tokens)
        assert all(large <= 1.5 * small for small, large in pairwise(tokens))

    def test_never_beyond_the_limits(self) -> None:
        shapes = mixed_shapes(4, 300, 1_000_000)
        assert [(shape.num_tokens, shape.num_rows) for shape in shapes] == [(128, 4), (256, 4)]
