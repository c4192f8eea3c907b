"""The scheduler's process."""

import sys

from pillion.runtime.process import enter


def main() -> int:
    """Runs the actor until it is told to shut down; returns the exit status."""
    context = enter("scheduler")
    from pillion.actors.scheduler.scheduler import Scheduler
    from pillion.messages.inboxes import SchedulerInbox
    from pillion.runtime.actor import run_actor

    core = Scheduler(context.epoch, context.config, context.peer_epochs)
    return run_actor(context, core, SchedulerInbox)


if __name__ == "__main__":
    sys.exit(main())
