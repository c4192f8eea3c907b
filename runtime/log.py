"""The log of a daemon: every process appends lines to one file."""

import logging
import os
import sys
from typing import Final

from pillion.runtime.errors import ConfigError

LEVEL_VARIABLE: Final = "PILLION_LOG"
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def start_logging(actor: str) -> None:
    """Sends this process's log to its standard error, each line with time, level, actor and pid.

    $PILLION_LOG chooses the level: debug, info (the default), warning or error. Raises ConfigError else.
    """
    wanted = os.environ.get(LEVEL_VARIABLE, "info")
    level = _LEVELS.get(wanted.lower())
    if level is None:
        raise ConfigError(
            f"{LEVEL_VARIABLE} must be one of {', '.join(_LEVELS)}, got {wanted!r:.40}"
        )
    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(
        logging.Formatter(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {actor}[%(process)d] %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
    )
    logging.basicConfig(level=level, handlers=[stderr], force=True)
