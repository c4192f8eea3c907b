"""The one clock of a machine: monotonic nanoseconds, comparable between processes."""

import time

now_ns = time.monotonic_ns

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
