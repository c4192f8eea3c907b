"""Work on prompts: begun when the engine is ready, done on the spot or handed out to threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pillion.actors.detokenizer.prompt_jobs import Lane, PromptJob
from pillion.actors.detokenizer.text_model import TextModel
from pillion.messages.control import EngineGeometry


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work and what comes after it."""

    lane: Lane
    work: Callable[[TextModel, EngineGeometry], Any]
    done: Callable[[PromptJob], None]


class Preparation:
    """Every task is under the id of a request or question until it is done or forgotten."""

    def __init__(self) -> None:
        self.model: TextModel | None = None
        self.geometry: EngineGeometry | None = None
        self.jobs: list[PromptJob] = []  # for whoever drives the edge to run
        self._waiting: dict[int, Task] = {}
        self._running: dict[int, tuple[PromptJob, Task]] = {}

    @property
    def ready(self) -> bool:
        """Whether what comes in is begun at once."""
        return self.model is not None and self.geometry is not None

    def begin(self, task_id: int, task: Task) -> None:
        """Begins, or keeps the task until the engine is ready."""
        model, geometry = self.model, self.geometry
        if model is None or geometry is None:
            self._waiting[task_id] = task
            return
        job = PromptJob(task_id, task.lane, lambda: task.work(model, geometry))
        self._running[task_id] = job, task
        if task.lane == "inline":
            job.run()
            self.on_job_done(job)
        else:
            self.jobs.append(job)

    def begin_waiting(self) -> None:
        """Begins with all that came before the engine was ready, if it is now."""
        while self.ready and self._waiting:
            task_id = next(iter(self._waiting))
            self.begin(task_id, self._waiting.pop(task_id))

    def on_job_done(self, job: PromptJob) -> None:
        """A job has run."""
        _, task = self._running.pop(job.job_id, (None, None))
        if task is not None:
            task.done(job)

    def forget(self, task_id: int) -> None:
        """Nobody wants this any more."""
        self._waiting.pop(task_id, None)
        job, _ = self._running.pop(task_id, (None, None))
        if job is not None:
            job.cancelled = True
