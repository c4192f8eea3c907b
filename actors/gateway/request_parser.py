"""Parses requests and declines what some offer beside: to go on in another protocol.

Clients that would rather speak HTTP/2, as Java's, say so with each request. httptools takes that for the end of HTTP
and of the request's body with it.
"""

from typing import Final, Protocol

from httptools import HttpParserUpgrade, HttpRequestParser

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class RequestReader(Protocol):
    """Whoever is told what comes; `headers` are those of the latest request."""

    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class RequestParser:
    """What uvicorn uses of httptools' parser."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._parser = HttpRequestParser(reader)

    @property
    def is_cut_short(self) -> bool:
        """Whether the request that is complete now has had no chance to bring its body: that follows."""
        return self._parser.should_upgrade()

    def feed_data(self, data: bytes) -> None:
        """Takes bytes of any number of requests. Raises HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._parser = HttpRequestParser(_BehindHead(self._reader))
                self._parser.feed_data(_head_of_body(self._reader.headers))
            else:
                return

    def should_upgrade(self) -> bool:
        """To what, nobody here would know."""
        return False

    def should_keep_alive(self) -> bool:
        """Whether another request may follow on this connection."""
        return self._parser.should_keep_alive()

    def get_http_version(self) -> str:
        """Such as "1.1"."""
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        """Such as POST."""
        return self._parser.get_method()


class _BehindHead:
    """Is told the head of a request that its reader knows already, and tells it all that follows."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._in_head = True
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_message_complete

    def on_message_begin(self) -> None:
        if not self._in_head:
            self._reader.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._in_head:
            self._reader.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._reader.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._in_head:
            self._reader.on_headers_complete()
        self._in_head = False


def _head_of_body(headers: list[tuple[bytes, bytes]]) -> bytes:
    """A head that offers nothing, before a body that is framed as with these headers."""
    framing = [name + b": " + value for name, value in headers if name in _FRAMING]
    return b"\r\n".join([b"POST / HTTP/1.1", *(framing or [b"content-length: 0"]), b"", b""])
