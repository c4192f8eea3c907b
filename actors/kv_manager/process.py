"""The KV manager's process."""

import sys

from pillion.runtime.process import enter


def main() -> int:
    """Runs the actor until it is told to shut down; returns the exit status."""
    context = enter("kv_manager")
    from pillion.actors.kv_manager.kv_manager import KvManager
    from pillion.messages.inboxes import KvManagerInbox
    from pillion.runtime.actor import run_actor

    core = KvManager(
        context.epoch, context.config.enable_prefix_caching, peer_epochs=context.peer_epochs
    )
    return run_actor(context, core, KvManagerInbox)


if __name__ == "__main__":
    sys.exit(main())
