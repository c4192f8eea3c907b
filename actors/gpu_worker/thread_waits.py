"""How long a thread waits awake for the others' parts of a product."""

from collections.abc import MutableMapping
from typing import Final

SPIN_COUNT: Final = "GOMP_SPINCOUNT"
WAIT_POLICY: Final = "OMP_WAIT_POLICY"
# On the order of 0.1 ms: what an undisturbed product needs. With the library's own bound, thirty times as long, a
# thread keeps its core from the very one that it waits for when another process has the other core: steps then take
# fifty times as long instead of six.
SPINS: Final = 10_000


def bound_spinning(environment: MutableMapping[str, str]) -> None:
    """Before torch is imported. What the user has set stays."""
    if WAIT_POLICY not in environment:
        environment.setdefault(SPIN_COUNT, str(SPINS))
