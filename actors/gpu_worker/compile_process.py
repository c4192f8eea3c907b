"""The process around compile_part.

usage: compile_process.py CONFIGURATION all|tuning NUM_PARTS PART, the first as JSON

Says in lines what it has done.
"""

import sys
from functools import partial

from pillion.actors.gpu_worker.head_start import head_start
from pillion.runtime.config import from_json
from pillion.runtime.process import end_with_launcher


def main() -> None:
    """Compiles a part."""
    end_with_launcher(0)
    config, what = from_json(sys.argv[1].encode()), sys.argv[2]
    num_parts, part = int(sys.argv[3]), int(sys.argv[4])
    with head_start(config.device):
        from pillion.actors.gpu_worker.compile_part import compile_part

    report = partial(print, flush=True)
    compile_part(config, part, num_parts, report, only_tuning=what == "tuning")


if __name__ == "__main__":
    main()
