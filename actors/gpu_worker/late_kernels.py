"""Tells of kernels that are compiled once requests are served: each holds up a step for as long as it takes."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def warn_of_late_kernels() -> None:
    """From now on each kernel that Triton compiles is a warning: this start or an earlier one should have.

    One that is loaded from the cache of compiled kernels, as by captures between steps, is none.
    """
    from triton import knobs

    knobs.compilation.listener = _compiled


def _compiled(*, src: Any, cache_hit: bool, **_: Any) -> None:
    if not cache_hit:
        logger.warning(
            "kernel %s was compiled behind the start, and a step may have waited for it", src.name
        )
