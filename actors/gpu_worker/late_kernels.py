"""Tells of kernels that are compiled once requests are served: each holds up a step for as long as it takes."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def warn_of_late_kernels() -> None:
    """From now on each kernel that Triton compiles is a warning: the start should have run it."""
    from triton import knobs

    knobs.compilation.listener = _compiled


def _compiled(*, src: Any, cache_hit: bool, **_: Any) -> None:
    if not cache_hit:
        logger.warning(
            "kernel %s was compiled in the middle of a step, which waited for it", src.name
        )
