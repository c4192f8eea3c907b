"""The same ring over sockets and processes."""

import random
from collections import Counter
from pathlib import Path

from fake_edge import make_request, make_sampling
from process_ring import ProcessRing

from pillion.runtime.clock import now_ns
from pillion.runtime.config import EngineConfig

CONFIG = EngineConfig(
    model="fake",
    max_model_len=256,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    num_kv_blocks=60,
    block_size=8,
)


def test_real_processes_give_every_request_its_own_tokens_and_stop() -> None:
    chance = random.Random(1)
    trunk = [chance.randrange(500) for _ in range(100)]
    with ProcessRing(CONFIG) as ring:
        for number in range(60):
            prompt = [*trunk[: chance.randrange(100)], chance.randrange(500)]
            sampling = make_sampling(max_tokens=chance.choice((1, 20, 100)), stop_token_ids=[7])
            seeds = [chance.randrange(2**63) for _ in range(chance.choice((1, 1, 3)))]
            request = make_request(
                1 + 4 * number, prompt, sampling, now_ns(), seeds, client_key=number % 3
            )
            ring.edge.submit(request)
        ring.serve(deadline_s=100)
        ring.edge.abort([1])
        ring.send_from_edge()
        loaded = {
            name: Path(f"/proc/{process.pid}/maps").read_text()
            for name, process in ring.processes.items()
        }
        assert ring.shut_down() == {"kv_manager": 0, "scheduler": 0, "gpu_worker": 0}
    outcomes = Counter(sample.outcome for sample in ring.edge.samples.values())
    assert set(outcomes) == {"stop", "length"}
    assert any(sample.num_cached_tokens for sample in ring.edge.samples.values())
    for name, maps in loaded.items():
        assert "libtorch" not in maps, name
