"""The fake worker as a process: whole daemons without torch and without weights.

`ActorSpec("gpu_worker", fake_worker_command())` takes the place of the real one in the launcher's table.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from pillion.runtime.process import enter

DEFAULT_VOCAB_SIZE: Final = 49_152  # SmolLM2's
DEFAULT_MAX_MODEL_LEN: Final = 8_192
DEFAULT_MAX_NUM_SEQS: Final = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS: Final = 8_192
DEFAULT_NUM_KV_BLOCKS: Final = 16_384


def fake_worker_command(
    vocab_size: int = DEFAULT_VOCAB_SIZE, step_us: int = 0, check_kv: bool = False
) -> tuple[str, ...]:
    """The command of the launcher's table: it is followed by the arguments of runtime/process.py."""
    # Without -P, so that the modules beside this file are found.
    return (
        sys.executable,
        str(Path(__file__).resolve()),
        f"--vocab-size={vocab_size}",
        f"--step-us={step_us}",
        *(["--check-kv"] if check_kv else []),
    )


def main() -> int:
    """Runs the actor until it is told to shut down; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab-size", type=int, default=DEFAULT_VOCAB_SIZE)
    parser.add_argument("--step-us", type=int, default=0, help="how long a step takes")
    parser.add_argument("--check-kv", action="store_true", help="check the KV content of each step")
    options, rest = parser.parse_known_args()
    context = enter("gpu_worker", rest)
    from fake_model import FakeModel
    from fake_worker import FakeWorker, fake_geometry

    from pillion.messages.inboxes import WorkerInbox
    from pillion.runtime.actor import run_actor

    class TimedWorker(FakeWorker):
        """Takes its time for each step, and sees no message meanwhile, as on a CPU."""

        def tick(self, now_ns: int) -> int | None:
            num_steps = self.counters["steps"]
            again_ns = super().tick(now_ns)
            if options.step_us and self.counters["steps"] != num_steps:
                context.progress.stamp_layer()
                time.sleep(options.step_us / 1e6)
            return again_ns

    config = context.config
    model = FakeModel(options.vocab_size, config.max_model_len or DEFAULT_MAX_MODEL_LEN)
    max_num_seqs = config.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    num_blocks = config.num_kv_blocks or DEFAULT_NUM_KV_BLOCKS
    worker = TimedWorker(
        model,
        max_num_seqs,
        num_blocks,
        config.block_size,
        steps_in_flight=config.steps_in_flight,
        check_kv=options.check_kv,
        epoch=context.epoch,
    )
    geometry = fake_geometry(
        model,
        max_num_seqs,
        config.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS,
        num_blocks,
        config.block_size,
        context.epoch,
    )
    worker.outgoing.append(("launcher", geometry))
    return run_actor(context, worker, WorkerInbox)


if __name__ == "__main__":
    sys.exit(main())
