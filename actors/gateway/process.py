"""The gateway's process."""

import sys

from pillion.runtime.process import enter


def main() -> int:
    """Runs the actor until it is told to shut down; returns the exit status."""
    context = enter("gateway")
    import uvloop

    from pillion.actors.gateway.gateway_loop import run_gateway
    from pillion.runtime.actor import report_failure

    try:
        uvloop.run(run_gateway(context))
    except Exception as error:
        report_failure(context, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
