"""Rows of per-slot values."""

import numpy as np
import torch

from pillion.actors.gpu_worker.sampling.slot_table import SlotTable
from pillion.actors.gpu_worker.table_writes import TableWrites

CPU = torch.device("cpu")


def test_rows_are_neutral_until_written_and_again_when_cleared() -> None:
    table = SlotTable(3, (4,), np.int64, -1, CPU)
    rows = table.rows()
    table.write(1, [7, 8])
    assert table.rows().tolist() == [[-1] * 4, [7, 8, -1, -1], [-1] * 4]
    table.write(1, [9])
    assert table.rows()[1].tolist() == [9, -1, -1, -1]
    table.clear(1)
    assert table.rows()[1].tolist() == [-1] * 4
    assert table.rows().data_ptr() == rows.data_ptr()


def test_single_values_and_neutral_rows() -> None:
    single = SlotTable(2, (), np.int64, 0, CPU)
    single.write(1, 2**62)
    assert single.rows().tolist() == [0, 2**62]
    triple = SlotTable(2, (3,), np.float32, (1.0, 0.0, 0.5), CPU)
    triple.write(0, (2.0, 2.0, 2.0))
    triple.write_row(1, (3.0, 4.0, 5.0))
    assert triple.rows().tolist() == [[2.0, 2.0, 2.0], [3.0, 4.0, 5.0]]
    triple.clear(1)
    triple.clear(0)
    assert triple.rows().tolist() == [[1.0, 0.0, 0.5]] * 2


def test_a_corner_of_a_matrix() -> None:
    table = SlotTable(2, (2, 3), np.int32, 0, CPU)
    table.write(1, np.ones((1, 3), np.int32))
    assert table.rows()[1].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_rows_of_several_tables_go_to_the_device_together() -> None:
    tables = [
        SlotTable(4, (3,), np.float32, (0.0, 0.0, 1.0), CPU),
        SlotTable(4, (2,), np.int64, 0, CPU),
        SlotTable(4, (), np.int64, -1, CPU),
    ]
    for table in tables:  # as where the device has memory of its own
        table._shares_memory = False
        table.device_rows = table.device_rows.clone()
    uploads = []

    def upload(array: np.ndarray) -> torch.Tensor:
        uploads.append(array)
        return torch.from_numpy(array)

    writes = TableWrites(upload, [table.device_rows for table in tables])
    for number in range(2):
        for table in tables:
            table.write_row(1, 5 + number)
            table.write_row(3 - number, 2)
            table.clear(number)
            assert (table.device_rows.numpy() != table.host_np).any()
        for table in tables:
            table.stage(writes)
        writes.flush()
        for table in tables:
            np.testing.assert_array_equal(table.device_rows.numpy(), table.host_np)
    for table in tables:
        table.stage(writes)
    writes.flush()
    assert len(uploads) == 2
