"""A daemon with a fake worker: python fake_worker_daemon.py [--step-us=N] <arguments of runtime/daemon.py>.

Tokenizer, text edge, sockets and launcher are real, so the tokens are nonsense of the real vocabulary.
"""

import argparse
import sys

from fake_worker_process import DEFAULT_VOCAB_SIZE, fake_worker_command

from pillion.runtime.daemon import main
from pillion.runtime.supervision import ACTORS, ActorSpec

if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--vocab-size", type=int, default=DEFAULT_VOCAB_SIZE)
    parser.add_argument("--step-us", type=int, default=0)
    options, rest = parser.parse_known_args()
    fake = ActorSpec("gpu_worker", fake_worker_command(options.vocab_size, options.step_us))
    sys.exit(main(rest, [fake if spec.name == fake.name else spec for spec in ACTORS]))
