"""Breaks the device's context under a worker and prints what the worker says of it.

usage: broken_device.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from tiny_worker import TinyWorker, tiny_config

from pillion.actors.gpu_worker.warm_up import GREEDY
from pillion.messages.codec import unpack_int64


def main() -> None:
    rig = TinyWorker.start(tiny_config(Path(sys.argv[1]), "cuda"))
    rig.run([(0, 0, 3)], [rig.new(0, [5, 6, 7], GREEDY)])
    few, nowhere = torch.zeros(4, device="cuda"), torch.tensor([1 << 20], device="cuda")
    rig.give([(0,)], repeat=20)
    rig.worker.tick(0)  # a step is on its way
    few[nowhere]  # an assertion on the device
    outputs = rig.rest()
    failures = [output.failure for output in outputs if output.failure is not None]
    found = {
        "finished": rig.worker.finished,
        "device_lost": [failure.device_lost for failure in failures],
        "sequence_ids": [unpack_int64(failure.sequence_ids) for failure in failures],
        "error": repr(rig.worker.end_error)[:200],
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # nothing on the device can be given back


if __name__ == "__main__":
    main()
