"""Threads for work that would keep the event loop from its clients."""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from pillion.actors.detokenizer.prompt_jobs import Lane, PromptJob

# "long" and "apart" leave a core to the loop; what is queued behind them is never short.
THREADS: Final[dict[Lane, int]] = {"quick": 1, "long": 2, "apart": 1}


class JobThreads:
    """Runs jobs, each lane on its own threads, and reports them on the event loop.

    The threads do not keep the process alive: a job that still runs at the end ends with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[PromptJob], None]) -> None:
        self._loop = loop
        self._done = done
        self._queues: dict[Lane, SimpleQueue[PromptJob]] = {}

    def submit(self, job: PromptJob) -> None:
        """Runs a job as soon as a thread of its lane is free."""
        queue = self._queues.get(job.lane)
        if queue is None:
            queue = self._queues[job.lane] = SimpleQueue()
            for number in range(THREADS[job.lane]):
                threading.Thread(
                    target=self._work, args=(queue,), name=f"{job.lane}-{number}", daemon=True
                ).start()
        queue.put(job)

    def _work(self, queue: SimpleQueue[PromptJob]) -> None:
        while True:
            job = queue.get()
            job.run()
            if job.lane == "long":
                return_free_memory()
            try:
                self._loop.call_soon_threadsafe(self._done, job)
            except RuntimeError:  # the loop has ended, and with it everyone who waited
                return
            del job  # this thread may wait for long, and the job holds a prompt


def return_free_memory() -> None:
    """Gives memory that was used for a moment back to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
