"""What a captured step leaves for the host, as the scheduler hears it."""

from typing import Any

import numpy as np
import torch

from pillion.actors.gpu_worker.device import Download
from pillion.actors.gpu_worker.pending_output import PendingOutput, StepIdentity
from pillion.messages.codec import unpack_ids
from pillion.messages.ids import FINISH_LENGTH

NUM_ROWS, PADDED_ROWS = 3, 4


def test_rows_that_are_over_leave_no_logprobs_but_their_width(make_rig: Any) -> None:
    """The host learns only with its answer that the step before was a row's last."""
    processor = make_rig().worker._output_processor
    # Row 0 was over, and had asked for five; row 1 asks for none, row 2 for two and ends now.
    columns = torch.zeros((4, PADDED_ROWS), dtype=torch.int32)
    columns[0] = torch.tensor([9, 11, 12, 9])
    columns[1] = torch.tensor([0, 21, 22, 0])
    columns[2, 2] = FINISH_LENGTH
    columns[3] = torch.tensor([0, 1, 1, 0])
    ids = torch.full((6, PADDED_ROWS), 77, dtype=torch.int32)
    ids[:, 2] = torch.tensor([12, 3, 4, -1, -1, -1])
    logprobs = torch.zeros((6, PADDED_ROWS))
    logprobs[:3, 2] = torch.tensor([-1.5, -0.5, -1.0])
    slots = np.arange(NUM_ROWS, dtype=np.int32)
    pending = PendingOutput(
        slots_np=slots,
        generations_np=np.zeros(NUM_ROWS, dtype=np.int32),
        sequence_ids_np=slots.astype(np.int64),
        columns=Download([columns]),
        logprobs=Download([ids, logprobs, torch.tensor([0, 0, 6, 0], dtype=torch.int32)]),
        logprob_rows_np=np.array([0, 2], dtype=np.int32),
        are_logprobs_columns=True,
    )
    output = processor.collect(pending, StepIdentity(1, 2, 3, 4, 1), None)
    assert unpack_ids(output.slots) == [1, 2]
    assert unpack_ids(output.token_ids) == [11, 12]
    assert unpack_ids(output.positions) == [21, 22]
    told = output.logprobs
    assert told is not None
    assert (told.num_top, unpack_ids(told.rows), unpack_ids(told.ranks)) == (5, [1], [6])
    assert unpack_ids(told.token_ids) == [12, 3, 4, -1, -1, -1]
    assert np.frombuffer(told.logprobs, np.float32)[:3].tolist() == [-1.5, -0.5, -1.0]
