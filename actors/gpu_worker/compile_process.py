"""The process around compile_part.

usage: compile_process.py CONFIGURATION NUM_PARTS PART, the first as JSON
"""

import sys

from pillion.actors.gpu_worker.head_start import head_start
from pillion.runtime.config import from_json
from pillion.runtime.process import end_with_launcher


def main() -> None:
    """Compiles a part."""
    end_with_launcher(0)
    config, num_parts, part = from_json(sys.argv[1].encode()), int(sys.argv[2]), int(sys.argv[3])
    with head_start(config.device):
        from pillion.actors.gpu_worker.compile_part import compile_part

    compile_part(config, part, num_parts)


if __name__ == "__main__":
    main()
