"""For how long what the scheduler says is true."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One life of the scheduler together with one of the worker; its messages name both."""

    epoch: int
    worker_epoch: int
