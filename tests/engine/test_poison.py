"""A request that ends the text edge each time that it is sent: it is given up before the daemon is."""

import pytest
from ring_daemon import NAME, StartRing, until

from pillion import AsyncClient, SamplingParams
from pillion.runtime.errors import DaemonUnavailable

pytestmark = pytest.mark.model


async def test_a_request_that_ends_each_text_edge_is_given_up_while_the_daemon_lives(
    start_ring: StartRing,
) -> None:
    # The first message to each life is word of the worker, the second of the request.
    daemon = start_ring(fault_flags=("detokenizer:raise_in_loop:message=2:epoch=0",))
    async with AsyncClient(NAME) as client:
        with pytest.raises(DaemonUnavailable, match="lost 4 times"):
            await client.generate([1, 2, 3], SamplingParams(max_tokens=5))
    four_deaths = {"failed": 4}
    await until("they are noted", lambda: daemon.actors()["detokenizer"].restarts == four_deaths)
    await until("the daemon is ready", lambda: daemon.status().state == "ready")
