"""A daemon whose actors are fake: python fake_daemon.py BEHAVIOURS <arguments of runtime/daemon.py>.

BEHAVIOURS is JSON, e.g. {"gpu_worker": "exit_at_start"}; the others behave well.
"""

import json
import sys
from pathlib import Path

from pillion.runtime.daemon import main
from pillion.runtime.supervision import ACTORS, ActorSpec

FAKE_ACTOR = str(Path(__file__).with_name("fake_actor.py"))

if __name__ == "__main__":
    behaviours = json.loads(sys.argv[1])
    table = [
        ActorSpec(
            spec.name,
            (sys.executable, "-P", FAKE_ACTOR, spec.name, behaviours.get(spec.name, "good")),
        )
        for spec in ACTORS
    ]
    sys.exit(main(sys.argv[2:], table))
