"""The batch-invariant mode: tokens and log-probabilities, to the last bit, alone, beside others and in pieces."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tiny_worker import TinyWorker, tiny_config

from pillion.actors.gpu_worker.warm_up import GREEDY
from pillion.messages.codec import unpack_ids

# Wide enough for products of one row and of several to be summed in different orders.
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
}
NUM_TOP, MORE_TOKENS = 3, 9
CHANCE = random.Random(4)
PROMPTS = [[CHANCE.randrange(2048) for _ in range(length)] for length in (23, 4, 31, 12)]
SAMPLINGS = [
    replace(GREEDY, logprobs=NUM_TOP, temperature=temperature, seed=seed)
    for seed, temperature in enumerate((0.0, 0.9, 0.0, 1.2))
]

# of each token of an answer: ids and log-probabilities, bit by bit
Said = dict[int, list[bytes]]


def said(rig: TinyWorker, slots: Sequence[int], cut: int = 0) -> Said:
    """What the prompts of these slots get beside each other; `cut`: tokens that are read in a step of their own."""
    new = [rig.new(slot, PROMPTS[slot], SAMPLINGS[slot]) for slot in slots]
    if cut:
        rig.run([(slot, 0, cut) for slot in slots], new)
        new = []
    outputs = rig.run([(slot, cut, len(PROMPTS[slot])) for slot in slots], new)
    outputs += rig.run([(slot,) for slot in slots], repeat=MORE_TOKENS)
    rig.run([], released=slots)
    rig.generation += 1
    found = defaultdict(list)
    for output in outputs:
        owners, columns = unpack_ids(output.slots), output.logprobs
        assert columns is not None
        ids = np.frombuffer(columns.token_ids, np.int32).reshape(-1, 1 + NUM_TOP)
        values = np.frombuffer(columns.logprobs, np.float32).reshape(-1, 1 + NUM_TOP)
        for row, *entry in zip(unpack_ids(columns.rows), ids, values, strict=True):
            found[owners[row]].append(b"".join(array.tobytes() for array in entry))
    return found


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", "float32"),
        pytest.param(
            *("cuda", "bfloat16"),
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_an_answer_is_the_same_to_the_last_bit(device: str, dtype: str, tmp_path: Path) -> None:
    rig = TinyWorker.start(tiny_config(tmp_path, device, SIZES, dtype=dtype, batch_invariant=True))
    alone = {slot: said(rig, [slot])[slot] for slot in range(len(PROMPTS))}
    assert all(len(tokens) == 1 + MORE_TOKENS for tokens in alone.values())
    assert said(rig, [0, 1, 2, 3]) == alone
    assert said(rig, [3, 1, 0, 2], cut=3) == alone
    assert said(rig, [2, 0]) == {slot: alone[slot] for slot in (2, 0)}
    assert rig.worker.counters["graph_steps"] == 0
