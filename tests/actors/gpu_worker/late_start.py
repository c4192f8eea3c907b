"""Starts a worker as its process does and has it serve. Prints what it had captured when it was ready and in the end,
and what was compiled in between.

usage: late_start.py FOLDER start|serve
"""

import json
import sys
from pathlib import Path
from typing import Any

from tiny_worker import TinyWorker, tiny_config
from triton import knobs

from pillion.actors.gpu_worker.compile_ahead import compile_ahead
from pillion.actors.gpu_worker.start_up import start_worker
from pillion.actors.gpu_worker.warm_up import EVERYTHING, GREEDY

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
# rows, tokens of each prompt
LOAD = ((1, 1), (1, 100), (9, 5), (20, 30), (200, 3), (16, 100), (3, 60), (129, 9))


def serve(rig: TinyWorker) -> None:
    """Prompts, then two tokens for each row."""
    for num_rows, length in LOAD:
        slots = range(num_rows)
        new = [rig.new(slot, [7] * length, GREEDY if slot else EVERYTHING) for slot in slots]
        rig.run([(slot, 0, length) for slot in slots], new)
        rig.run([(slot,) for slot in slots], repeat=2)
        rig.run([], released=slots)
        rig.generation += 1


def main() -> None:
    config = tiny_config(
        Path(sys.argv[1]),
        "cuda",
        SIZES,
        dtype="bfloat16",
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=128,
        block_size=16,
        num_kv_blocks=2048,
        tuning_seconds=0.0,
    )
    worker, geometry = start_worker(config, 1, lambda phase: None, None, compile_ahead(config))
    late: list[str] = []

    def compiled(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            late.append(src.name)

    knobs.compilation.listener = compiled
    ready = dict(worker.gauges)
    if sys.argv[2] == "serve":
        rig = TinyWorker(worker)
        serve(rig)
        rig.idle()
    found = {"ready": ready, "graphs_bytes": geometry.graphs_bytes, "late": late}
    print(json.dumps(found | {"end": worker.gauges}), flush=True)


if __name__ == "__main__":
    main()
