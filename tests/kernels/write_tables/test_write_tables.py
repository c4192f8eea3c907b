"""Pieces against a loop over their words."""

import pytest
import torch

from pillion.kernels.write_tables import PIECE_FIELDS, Tables, write_tables
from pillion.kernels.write_tables.cases import CASES, Case

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_a_loop_over_words(case: Case) -> None:
    inputs, wanted = case.inputs(CPU), case.inputs(CPU)
    write_tables(inputs.tables, inputs.staged, inputs.num_pieces)
    staged = inputs.staged.tolist()
    values = staged[PIECE_FIELDS * inputs.num_pieces :]
    for piece in range(inputs.num_pieces):
        row, table, first, at, length = staged[PIECE_FIELDS * piece : PIECE_FIELDS * (piece + 1)]
        for number in range(length):
            wanted.tables.words[table][row, first + number] = values[at + number]
    assert all(map(torch.equal, inputs.tensors, wanted.tensors))


def test_values_of_each_type() -> None:
    numbers, flags = torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    rows = torch.zeros(2, 2, 3)
    pieces = [2, 0, 0, 0, 2, 1, 1, 0, 2, 1, 1, 2, 4, 3, 2]
    low, high = -(2**31) + 5, 3
    values = [low, high, 0, *torch.tensor([0.5, -2.0]).view(torch.int32).tolist()]
    staged = torch.tensor([*pieces, *values], dtype=torch.int32)
    write_tables(Tables([numbers, flags, rows]), staged, 3)
    assert numbers.tolist() == [0, 0, (high << 32) + 2**31 + 5]
    assert flags.tolist() == [True, False, True]
    assert rows.tolist() == [[[0.0] * 3] * 2, [[0.0] * 3, [0.0, 0.5, -2.0]]]


@pytest.mark.parametrize(
    "table", [torch.zeros(4, 6)[:, :3], torch.zeros(4, dtype=torch.int16)], ids=["strides", "type"]
)
def test_other_tables_are_refused(table: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a table of"):
        Tables([torch.zeros(4), table])
