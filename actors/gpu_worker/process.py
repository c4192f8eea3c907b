"""The gpu_worker's process."""

import os
import sys

from pillion.actors.gpu_worker.compile_ahead import compile_ahead
from pillion.actors.gpu_worker.head_start import head_start
from pillion.actors.gpu_worker.thread_waits import bound_spinning
from pillion.messages.control import StartPhase
from pillion.messages.inboxes import WorkerInbox
from pillion.runtime.actor import report_failure, run_actor
from pillion.runtime.channels import Post, send_the_rest
from pillion.runtime.clock import NS_PER_MS, now_ns
from pillion.runtime.process import ActorContext, enter


class _Phases:
    """Tells the launcher how long each phase of the start took."""

    def __init__(self, context: ActorContext, post: Post) -> None:
        self._context = context
        self._post = post
        self._started_ns = now_ns()

    def end(self, phase: str) -> None:
        """A phase has ended, and the next one begins."""
        ended_ns = now_ns()
        self._post.send(
            "launcher",
            StartPhase(
                actor=self._context.name,
                epoch=self._context.epoch,
                phase=phase,
                duration_ms=(ended_ns - self._started_ns) / NS_PER_MS,
            ),
        )
        self._started_ns = ended_ns


def main() -> int:
    """Loads the model, then runs plans until Shutdown. Returns the exit status.

    After an error in the loop it doesn't return: the device may be broken, where to free what is on it is a crash.
    """
    context = enter("gpu_worker")
    bound_spinning(os.environ)
    post = Post(context.run_dir)
    phases = _Phases(context, post)
    compilation = compile_ahead(context.config)
    try:
        # torch is imported here, when the launcher's end is being watched for.
        with head_start(context.config.device):
            from pillion.actors.gpu_worker.late_kernels import warn_of_late_kernels
            from pillion.actors.gpu_worker.start_up import start_worker
            from pillion.actors.gpu_worker.step_faults import EveryStepFails

        phases.end("imports")
        context.faults.at_load()
        worker, geometry = start_worker(
            context.config, context.epoch, phases.end, context.progress, compilation
        )
        if geometry.device != "cpu":
            warn_of_late_kernels()
    except Exception as error:
        report_failure(context, error)
        return 1
    finally:
        post.close()
    worker.outgoing.append(("launcher", geometry))
    status = run_actor(context, worker, WorkerInbox)
    if worker.end_error is not None:
        # A request can break the device, and then it is its own doing; it cannot make every step fail.
        every_step_fails = isinstance(worker.end_error, EveryStepFails)
        report_failure(context, worker.end_error, spends_budget=every_step_fails)
        status = 1
    if status:
        send_the_rest()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
