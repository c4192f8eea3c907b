"""Memory does not grow with the number of requests, whatever became of them."""

import pytest
from ring_daemon import StartRing
from soak import SETTINGS, soak

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_REQUESTS = 6_400
# Of a hundred thousand, soak.py shows less than this too.
MAX_GROWTH_BYTES = 4 << 20


async def test_memory_is_flat_over_thousands_of_requests(start_ring: StartRing) -> None:
    daemon = start_ring(step_us=0, **SETTINGS)
    _, early, *_, late = await soak(daemon, NUM_REQUESTS, num_samples=5)
    growth = {name: late[name] - early[name] for name in late}
    assert max(growth.values()) < MAX_GROWTH_BYTES, growth
