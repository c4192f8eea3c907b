"""How many files a process may have open: each connection is one of them."""

import resource
from typing import Final

from pillion.runtime.errors import ConfigError

WANTED_OPEN_FILES: Final = 65_536
# What a launcher has open with one gateway, its control connections included; and what each other one adds.
LEAST_OPEN_FILES: Final = 128
_OPEN_FILES_OF_A_GATEWAY: Final = 8


def open_files_limit() -> int:
    """How many this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def allow_open_files(http_gateways: int) -> None:
    """Raises the limit for this process and those that it starts: the usual 1,024 is a default and no decision.

    Raises ConfigError if the system allows too few for a daemon with so many gateways.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(WANTED_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    least = LEAST_OPEN_FILES + _OPEN_FILES_OF_A_GATEWAY * (http_gateways - 1)
    if open_files_limit() < least:
        raise ConfigError(
            f"a process may have {open_files_limit()} files open here and a daemon needs {least}: raise the"
            " limit (ulimit -Hn, LimitNOFILE= in a unit)"
        )
