"""An actor for tests of the launcher: talks like a real one and misbehaves on demand.

python fake_actor.py NAME BEHAVIOUR <arguments of runtime/process.py>
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any

from pillion.messages import control, inboxes
from pillion.messages.base import RingMessage
from pillion.runtime.actor import run_actor
from pillion.runtime.process import enter
from pillion.runtime.progress import Progress

UNIONS: dict[str, Any] = {
    "kv_manager": inboxes.KvManagerInbox,
    "scheduler": inboxes.SchedulerInbox,
    "detokenizer": inboxes.DetokenizerInbox,
    "gpu_worker": inboxes.WorkerInbox,
}
STEPS_S = {"slow_step": 3.0, "stuck_step": 60.0}


class FakeCore:
    """Reports what it is told in its gauges, so that tests see it in the status."""

    def __init__(self, name: str, behaviour: str, epoch: int, progress: Progress) -> None:
        self.outgoing: list[tuple[str, RingMessage]] = []
        self.finished = False
        self.counters: dict[str, int | float] = {"messages": 0}
        self.gauges: dict[str, int | float | str] = {"last": ""}
        self._name = name
        self._behaviour = behaviour
        self._epoch = epoch
        self._progress = progress
        self._num_ticks = 0
        if name == "gpu_worker" and behaviour != "no_geometry":
            self.outgoing += [
                ("launcher", _phase("weights", 12.5)),
                ("launcher", geometry(epoch)),
            ]

    def on_message(self, message: Any, now_ns: int) -> None:
        self.counters["messages"] += 1
        self.gauges["last"] = type(message).__name__
        print(f"{self._name} got {message}", file=sys.stderr, flush=True)
        match message:
            case control.Shutdown():
                if self._behaviour == "deaf":
                    return
                self.finished = True
            case control.Drain():
                if self._name == "detokenizer" and self._behaviour != "never_drained":
                    drained = control.Drained(actor=self._name, epoch=self._epoch)
                    self.outgoing.append(("launcher", drained))
            case control.EngineGeometry():
                if self._behaviour == "raise_in_loop":
                    raise RuntimeError("the test's own\nfault")
            case control.PeerRestarted():
                if self._behaviour == "raise_on_restart":
                    raise RuntimeError("a peer restarted")
                if self._behaviour == "crash_on_restart":
                    os.kill(os.getpid(), signal.SIGSEGV)

    def tick(self, now_ns: int) -> int | None:
        self._num_ticks += 1
        if (
            self._behaviour in STEPS_S and self._num_ticks == 2
        ):  # the first one's messages have left
            self._progress.stamp_layer()
            time.sleep(STEPS_S[self._behaviour])
            print(f"{self._name} has run its slow step", file=sys.stderr, flush=True)
        return None


def geometry(epoch: int) -> control.EngineGeometry:
    return control.EngineGeometry(
        epoch=epoch,
        model_name="fake",
        architecture="FakeForCausalLM",
        device="cpu",
        dtype="float32",
        vocab_size=100,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_groups=[
            control.KvGroupGeometry(
                kind="full_attention",
                num_layers=2,
                num_blocks=32,
                block_size_tokens=16,
                block_bytes=4096,
            )
        ],
        weights_bytes=1 << 20,
        kv_bytes=1 << 17,
    )


def _phase(phase: str, duration_ms: float) -> control.StartPhase:
    return control.StartPhase(actor="gpu_worker", epoch=1, phase=phase, duration_ms=duration_ms)


def main() -> int:
    name, behaviour = sys.argv[1:3]
    context = enter(name, sys.argv[3:])
    for prefix, holds in (("first_life_", context.epoch == 1), ("later_lives_", context.epoch > 1)):
        if behaviour.startswith(prefix):
            behaviour = behaviour.removeprefix(prefix) if holds else "good"
    match behaviour:
        case "exit_at_start":
            return 3
        case "raise_at_start":
            raise ValueError("weights are\nmissing")
        case "load_for_ever":
            while True:
                signal.pause()
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "has_child":
            subprocess.Popen(["sleep", "600"])
    context.faults.at_load()
    core = FakeCore(name, behaviour, context.epoch, context.progress)
    return run_actor(context, core, UNIONS[name])


if __name__ == "__main__":
    sys.exit(main())
