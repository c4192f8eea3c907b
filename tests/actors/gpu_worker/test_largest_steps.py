"""Steps at the limits of a configuration, with every sampling feature and log-probabilities of long prompts.

On a CUDA device they take no more memory than the configuration gives them.
"""

from itertools import accumulate
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from tiny_worker import TinyWorker, tiny_config

from pillion.actors.gpu_worker.cuda_memory import held_bytes, total_bytes
from pillion.actors.gpu_worker.device import Device
from pillion.actors.gpu_worker.start_up import start_worker
from pillion.actors.gpu_worker.warm_up import EVERYTHING
from pillion.messages.codec import pack_ids
from pillion.messages.steps import NewSequence
from pillion.runtime.config import EngineConfig

NUM_TOP = 20
BLOCK_SIZE = 16
NUM_DECODES = 5
# Of a CUDA device, beyond what others hold.
ROOM_BYTES = 10 << 30


def config_for(folder: Path, device: str, memory_fraction: float) -> EngineConfig:
    """On a CUDA device a small model with a large vocabulary, and the limits that are usual there."""
    on_cuda = device != "cpu"
    sizes = {"max_position_embeddings": 8192, "vocab_size": 128256 if on_cuda else 160}
    if on_cuda:
        sizes |= {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
        sizes |= {"num_key_value_heads": 4, "head_dim": 64}
    return tiny_config(
        folder,
        device,
        sizes,
        dtype="bfloat16" if on_cuda else "float32",
        max_num_seqs=256 if on_cuda else 8,
        max_num_batched_tokens=8192 if on_cuda else 128,
        max_model_len=8192 if on_cuda else 128,
        block_size=BLOCK_SIZE,
        num_kv_blocks=None if on_cuda else 64,
        memory_fraction=memory_fraction,
        tuning_seconds=0.0,
    )


class DeviceMemory:
    """Memory that this process takes of a CUDA device from now on, but for kernels and libraries."""

    def __init__(self) -> None:
        torch.cuda.empty_cache()
        device = Device(torch.device("cuda", 0))
        self.fraction = (held_bytes(device) + ROOM_BYTES) / total_bytes(device)
        self._before = torch.cuda.memory_reserved(0)

    def most_bytes(self) -> int:
        """That were taken at once."""
        return torch.cuda.max_memory_reserved(0) - self._before


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_the_largest_batch_with_everything_has_room(device: str, tmp_path: Path) -> None:
    memory = None if device == "cpu" else DeviceMemory()
    config = config_for(tmp_path, device, 0.9 if memory is None else memory.fraction)
    worker, geometry = start_worker(config, 1, lambda phase: None)
    num_rows, num_tokens = geometry.max_num_seqs, geometry.max_num_batched_tokens
    # Two long prompts, on a card of some 4,000 tokens, take what the others leave.
    long = (num_tokens - (num_rows - 2)) // 2
    lengths = [long, long] + [1] * (num_rows - 2)
    new = sequences(lengths)
    assert sum(lengths) == num_tokens
    if memory is not None:
        torch.cuda.reset_peak_memory_stats(0)
    rig = TinyWorker(worker)
    (first,) = rig.run([(slot, 0, length) for slot, length in enumerate(lengths)], new)
    found = [(told.start, told.num_top, len(told.ranks) // 4) for told in first.prompt_logprobs]
    assert found == [(1, NUM_TOP, long - 1)] * 2
    rig.run([(slot,) for slot in range(num_rows)], repeat=NUM_DECODES)
    assert len(rig.outputs) == 1 + NUM_DECODES
    for output in rig.outputs:
        assert output.failure is None
        assert not output.errors
        assert output.logprobs is not None
        assert len(output.token_ids) // 4 == num_rows
    assert memory is None or memory.most_bytes() < ROOM_BYTES


def sequences(lengths: list[int]) -> list[NewSequence]:
    """With room for their answers."""
    sampling = replace(
        EVERYTHING, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP, stop_token_ids=[2], min_tokens=100
    )
    counts = [(length + NUM_DECODES) // BLOCK_SIZE + 1 for length in lengths]
    starts = [0, *accumulate(counts)]
    return [
        NewSequence(
            sequence_id=slot,
            slot=slot,
            generation=0,
            token_ids=pack_ids([3] * length),
            num_prompt_tokens=length,
            num_computed_tokens=0,
            block_ids=[pack_ids(range(starts[slot], starts[slot + 1]))],
            sampling=sampling,
        )
        for slot, length in enumerate(lengths)
    ]
