"""The gateway's process."""

import resource
import sys
from typing import Final

from pillion.runtime.process import enter

MAX_OPEN_FILES: Final = 65_536


def main() -> int:
    """Runs the actor until it is told to shut down; returns the exit status."""
    context = enter("gateway")
    import uvloop

    from pillion.actors.gateway.gateway_loop import run_gateway
    from pillion.runtime.actor import report_failure

    _allow_many_connections()
    try:
        uvloop.run(run_gateway(context))
    except Exception as error:
        report_failure(context, error)
        return 1
    return 0


def _allow_many_connections() -> None:
    """Each connection is an open file, and the usual limit of 1,024 is a default and no decision."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
