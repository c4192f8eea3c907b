"""The text edge's process."""

import os
import sys

from pillion.runtime.process import enter


def main() -> int:
    """Runs the actor until it is told to shut down; returns the exit status."""
    context = enter("detokenizer")
    # One text is one piece of work here: the library's own threads would only take cores from the worker.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # A thread that renders or unpacks must not hold up the loop for the usual 5 ms.
    sys.setswitchinterval(0.001)
    import uvloop

    from pillion.actors.detokenizer.edge_loop import run_edge
    from pillion.runtime.actor import report_failure

    try:
        uvloop.run(run_edge(context))
    except Exception as error:
        report_failure(context, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
