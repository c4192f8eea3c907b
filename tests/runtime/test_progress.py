"""The page of signs of life, between processes."""

import os
import subprocess
import sys

from pillion.runtime.process import child_environment
from pillion.runtime.progress import Progress, ProgressPage, Sign


def test_each_actor_writes_its_own_line() -> None:
    page = ProgressPage(3)
    actor = Progress.open(os.dup(page.fd), 1)
    actor.stamp_turn(7)
    assert [page.read(line) for line in range(3)] == [
        Sign(0, False),
        Sign(7, False),
        Sign(0, False),
    ]
    actor.stamp_turn(8, has_worked=True)
    actor.stamp_layer()
    assert page.read(1).has_worked, "also behind the end of the life"
    page.clear(1)
    assert page.read(1) == Sign(0, False)
    page.close()


def test_a_step_lasts_until_the_loop_comes_round() -> None:
    page = ProgressPage(1)
    actor = Progress.open(os.dup(page.fd), 0)
    actor.stamp_layer()
    first = page.read(0)
    assert first.in_step
    actor.stamp_layer()
    second = page.read(0)
    assert second.in_step
    assert second.stamp_ns > first.stamp_ns > 0
    actor.stamp_turn(second.stamp_ns + 1)
    assert page.read(0) == Sign(second.stamp_ns + 1, False)
    page.close()


def test_another_process_is_seen() -> None:
    page = ProgressPage(2)
    script = (
        "from pillion.runtime.progress import Progress; import sys\n"
        "Progress.open(int(sys.argv[1]), 1).stamp_turn(2**62)"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(page.fd)],
        pass_fds=(page.fd,),
        env=child_environment(),
        check=True,
        timeout=20,
    )
    assert page.read(1) == Sign(2**62, False)
    page.close()


def test_a_line_of_ones_own_needs_no_page() -> None:
    Progress.private().stamp_turn(1)
