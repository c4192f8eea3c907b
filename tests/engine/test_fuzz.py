"""A minute of whatever may come in over the wire, on a whole daemon: no 500, no leak, no hang."""

import contextlib
import re
import socket
import time
from typing import Final

import pytest
from fuzz_inputs import Sent, anything, post
from hypothesis import HealthCheck, given, seed, settings
from ring_daemon import RingDaemon, StartRing, until

pytestmark = [pytest.mark.model, pytest.mark.slow]

FUZZ_S: Final = 60.0
# A round has its own seed, so that what it finds is found again: each run begins with the same ones.
EXAMPLES_OF_A_ROUND: Final = 200
# What a request may take on a machine that is busy with other tests.
ANSWER_DEADLINE_S: Final = 20.0
WARM_SHARE: Final = 0.4
# Caches of grammars and of the allocator are still filling; a leak per request would be far beyond.
MAX_GROWTH_BYTES: Final = 24 << 20
LAST: Final = b"GET /live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
# How a stream ends that has begun and fails by the server's fault.
FAILURE: Final = re.compile(rb'"code":"internal"|"type":"api_error"|"type":"response.failed"')
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def statuses(daemon: RingDaemon, sent: Sent) -> list[int]:
    """The statuses of all answers on a connection that carries these bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_DEADLINE_S)
        connection.connect(str(daemon.http))
        received = b""
        # The gateway may hang up in the middle of what it does not take.
        with contextlib.suppress(ConnectionError):
            # Whatever comes before, the gateway ends the connection behind the last one.
            connection.sendall(sent.data if sent.leaves else sent.data + LAST)
            if sent.num_requests is None:  # it may still wait for the rest of a body
                connection.shutdown(socket.SHUT_WR)
        if sent.leaves:
            return []
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                received += data
    assert not FAILURE.search(received), received
    return [int(found) for found in STATUS.findall(received)]


def rss_bytes(daemon: RingDaemon) -> dict[str, int]:
    return {
        name: actor.rss_bytes for name, actor in daemon.actors().items() if name != "gpu_worker"
    }


def num_open(daemon: RingDaemon) -> object:
    return daemon.actors()["gateway"].gauges["open_requests"]


def run_round(daemon: RingDaemon, number: int, until_s: float) -> None:
    @seed(number)
    @settings(
        max_examples=EXAMPLES_OF_A_ROUND,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(anything)
    def examples(sent: Sent) -> None:
        if time.monotonic() >= until_s:
            return
        found = statuses(daemon, sent)
        assert all(status < 500 for status in found), found
        if sent.num_requests is not None:
            assert len(found) >= sent.num_requests, found

    examples()


async def test_a_minute_of_anything(start_ring: StartRing) -> None:
    daemon = start_ring(max_model_len=256, max_num_seqs=32)
    began = time.monotonic()
    warm_at, end = began + WARM_SHARE * FUZZ_S, began + FUZZ_S
    before: dict[str, int] = {}
    number = 0
    while time.monotonic() < end:
        run_round(daemon, number, end)
        number += 1
        if not before and time.monotonic() > warm_at:
            before = rss_bytes(daemon)
    body = b'{"messages": [{"role": "user", "content": "word"}], "max_tokens": 3}'
    assert statuses(daemon, Sent(post("/v1/chat/completions", body), 1)) == [200, 200]
    await until("nothing is open", daemon.is_at_rest)
    await until("the gateway has nothing open", lambda: num_open(daemon) == 0)
    after = rss_bytes(daemon)
    growth = {name: (after[name] - size) >> 20 for name, size in before.items()}
    assert all(after[name] - size < MAX_GROWTH_BYTES for name, size in before.items()), growth
    counters = daemon.actors()["gateway"].counters
    assert counters["requests_failed"] == 0
    assert not any(actor.restarts for actor in daemon.actors().values())
    log = daemon.directory.log.read_text()
    assert "ERROR" not in log, log
