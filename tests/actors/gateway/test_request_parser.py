"""Requests that offer another protocol beside, as Java's client does, are served like any other."""

import json

import pytest
from gateway_rig import GatewayRig
from httptools import HttpParserError

from pillion.actors.gateway.request_parser import RequestParser

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
FRAMED = {
    "length": b"Content-Length: 4\r\n\r\nbody",
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n1\r\nb\r\n3\r\nody\r\n0\r\n\r\n",
}


class Reader:
    """Notes the requests that it is told of, as (url, headers, body)."""

    def __init__(self) -> None:
        self.parser = RequestParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete: list[tuple[bytes, int, bytes]] = []
        self.url = self.body = b""

    def on_message_begin(self) -> None:
        self.headers, self.url, self.body = [], b"", b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self.parser.get_method() == b"POST"
        assert self.parser.get_http_version() == "1.1"
        assert self.parser.should_keep_alive()
        assert not self.parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.parser.is_cut_short:
            self.complete.append((self.url, len(self.headers), self.body))


@pytest.mark.parametrize("framed", FRAMED)
def test_an_offer_costs_no_body_wherever_the_bytes_are_cut(framed: str) -> None:
    def request(path: bytes, *, offers: bool) -> bytes:
        head = b"POST %s HTTP/1.1\r\nHost: test\r\n" % path
        return head + (OFFER if offers else b"") + FRAMED[framed]

    data = request(b"/1", offers=True) * 2 + request(b"/2", offers=False)
    data += request(b"/3", offers=True)
    expected = [(b"/1", 5, b"body")] * 2 + [(b"/2", 2, b"body"), (b"/3", 5, b"body")]
    for cut in range(len(data)):
        reader = Reader()
        reader.parser.feed_data(data[:cut])
        reader.parser.feed_data(data[cut:])
        assert reader.complete == expected, cut


def test_a_body_that_is_framed_wrongly_is_refused_behind_an_offer_too() -> None:
    reader = Reader()
    with pytest.raises(HttpParserError):
        reader.parser.feed_data(
            b"POST / HTTP/1.1\r\n" + OFFER + b"Transfer-Encoding: chunked\r\n\r\nx\r\n"
        )
    assert reader.complete == []


async def test_requests_of_a_client_that_would_rather_speak_another_protocol(
    rig: GatewayRig,
) -> None:
    client = await rig.client()
    offer = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAEAAEAA",
    }
    body = {"messages": [{"role": "user", "content": "one two"}]}
    for _ in range(2):
        answer = await client.ask("POST", "/v1/chat/completions", body, offer)
        assert answer.status == 200, answer.body
        assert json.loads(answer.body)["choices"][0]["message"]["content"].split() == ["one", "two"]
        assert (await client.ask("GET", "/ready", headers=offer)).status == 200
