"""Whatever comes in over the wire: an answer or a hang-up, never a 500, and the gateway goes on."""

import asyncio
import json
from typing import Any

from gateway_rig import GatewayRig, StartRig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillion.actors.gateway.routes import ROUTES

DEADLINE_S = 10.0
POSTS = [spec.path for spec in ROUTES if spec.method == "POST"]
BODIES = [spec.body for spec in ROUTES if spec.body is not None]
NAMES = sorted({name for body in BODIES for name in body.__struct_fields__} - {"stream"})
# What some route cannot do without.
NEEDED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "word"}],
    "prompt": "word",
    "input": "word",
    "max_tokens": 5,
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
# Bodies that are nearly right reach deeper than those that are all wrong.
nearly = st.fixed_dictionaries(
    {name: st.just(value) for name, value in NEEDED.items()},
    optional={name: values for name in NAMES if name not in NEEDED},
)
headers = st.lists(
    st.tuples(
        st.sampled_from([b"x-request-id", b"authorization", b"content-type", b"expect", b"x"]),
        st.binary(max_size=20).filter(lambda value: not set(value) & {0, 10, 13}),
    ),
    max_size=4,
)

relaxed = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Fuzzed:
    """Drives a rig from examples, which are not asynchronous, on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rig: GatewayRig) -> None:
        self._loop = loop
        self._rig = rig

    def run(self, data: bytes, *, is_all: bool = False) -> bytes:
        """All that comes back for these bytes, until the gateway ends the connection.

        `is_all`: the client ends its side behind them, so that the gateway has nothing to wait for.
        """
        future = asyncio.run_coroutine_threadsafe(self._run(data, is_all), self._loop)
        return future.result(2 * DEADLINE_S)

    async def _run(self, data: bytes, is_all: bool) -> bytes:
        client = await self._rig.client()
        client.writer.write(data)
        if is_all:
            client.writer.write_eof()
        try:
            async with asyncio.timeout(DEADLINE_S):
                received = await client.reader.read()
        except ConnectionError:
            received = b""
        client.hang_up()
        return received


async def fuzz(rig: GatewayRig, test: Any) -> None:
    """Runs a property in a thread, then sees that the gateway is as it was."""
    await asyncio.to_thread(test, Fuzzed(asyncio.get_running_loop(), rig))
    assert (await rig.chat("word")).status == 200
    counters, gauges = rig.gateway.metrics.counters, rig.gateway.metrics.gauges
    ended = sum(counters[f"requests_{name}"] for name in ("finished", "cancelled", "refused"))
    assert counters["requests_failed"] == gauges["open_requests"] == 0
    assert counters["requests_received"] == ended


def request(path: str, body: bytes, more: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + more + b"\r\n" + body


def status_of(received: bytes) -> int:
    assert received.startswith(b"HTTP/1.1 "), received[:200]
    return int(received[9:12])


async def test_bodies(rig: GatewayRig) -> None:
    @relaxed
    @given(st.sampled_from(POSTS), nearly | values)
    def bodies(fuzzed: Fuzzed, path: str, body: Any) -> None:
        received = fuzzed.run(request(path, json.dumps(body).encode()))
        assert status_of(received) in (200, 400, 404), received
        if status_of(received) != 200:
            told = json.loads(received.split(b"\r\n\r\n", 1)[1])
            assert told["error"]["message"]

    await fuzz(rig, lambda fuzzed: bodies(fuzzed))


async def test_bytes_in_place_of_bodies(rig: GatewayRig) -> None:
    deep = [b"[" * 100_000, b'{"messages":' * 100_000, b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"NaN"]

    @relaxed
    @given(st.sampled_from(POSTS), st.binary(max_size=60) | st.sampled_from(deep), headers)
    def bodies(fuzzed: Fuzzed, path: str, body: bytes, pairs: list[tuple[bytes, bytes]]) -> None:
        more = b"".join(name + b": " + value + b"\r\n" for name, value in pairs)
        received = fuzzed.run(request(path, body, more))
        assert not received or status_of(received) in (400, 100), received

    await fuzz(rig, lambda fuzzed: bodies(fuzzed))


async def test_chunked_uploads_in_any_pieces(rig: GatewayRig) -> None:
    body = b'{"messages": [{"role": "user", "content": "word"}]}'

    @relaxed
    @given(st.lists(st.integers(1, len(body) - 1), unique=True, max_size=6).map(sorted))
    def uploads(fuzzed: Fuzzed, cuts: list[int]) -> None:
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        data = b"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\n"
        data += b"transfer-encoding: chunked\r\n\r\n"
        data += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        assert status_of(fuzzed.run(data)) == 200

    await fuzz(rig, lambda fuzzed: uploads(fuzzed))


async def test_noise_in_place_of_http(start_rig: StartRig) -> None:
    rig = await start_rig()
    good = request("/v1/chat/completions", b"{}")

    @relaxed
    @given(
        st.binary(min_size=1, max_size=100),
        st.integers(0, len(good)),
        st.integers(0, len(good)),
    )
    def noise(fuzzed: Fuzzed, wrong: bytes, start: int, end: int) -> None:
        # The noise may promise a longer body, or leave the connection open for another request.
        received = fuzzed.run(good[:start] + wrong + good[end:], is_all=True)
        assert b"HTTP/1.1 500" not in received

    await fuzz(rig, lambda fuzzed: noise(fuzzed))
