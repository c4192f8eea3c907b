"""A stream through steps that take 20 s each, in one layer, with the limits as they are: nobody is replaced.

python tests/engine/slow_steps.py MINUTES [MODEL]; not a test, because it takes its time.
"""

import os
import sys
import tempfile
import time

from pillion import Client, SamplingParams
from pillion.runtime.config import EngineConfig
from pillion.runtime.daemon import locate_model, start_daemon

NAME = "slow"
STEP_MS = 20_000
START_DEADLINE_S = 120.0


def main(minutes: float, model: str = "smollm2") -> int:
    """Prints each token as it comes. Returns 1 if an actor was replaced."""
    config = EngineConfig(
        model=model,
        name=NAME,
        max_model_len=512,
        kv_cache_bytes=128 << 20,
        fault_flags=(f"gpu_worker:delay_in_layer=15:ms={STEP_MS}",),
    )
    daemon = start_daemon(locate_model(config, progress=False), private=True)
    try:
        daemon.wait_ready(START_DEADLINE_S)
        with Client(NAME) as client:
            end = time.monotonic() + 60 * minutes
            params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
            for number, _ in enumerate(client.generate("Three rivers", params, stream=True)):
                print(time.strftime("%T"), number + 1, "tokens", flush=True)
                if time.monotonic() > end:
                    break
            actors = client.status().actors
        for actor in actors:
            print(actor.name, "life", actor.epoch, actor.last_death or "")
        return int(any(actor.epoch > 1 for actor in actors))
    finally:
        daemon.stop()
        daemon.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        os.environ["PILLION_RUNTIME_DIR"] = root
        sys.exit(main(float(sys.argv[1]), *sys.argv[2:]))
