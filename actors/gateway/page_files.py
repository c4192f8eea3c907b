"""GET / and what it loads: the built-in page, whose files lie in page/."""

from pathlib import Path
from typing import Final

from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.http_errors import HttpError

_FOLDER: Final = Path(__file__).with_name("page")
_CONTENT_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# Whatever a model writes into the page, it cannot load, run or send anything.
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


async def index(_: Gateway, exchange: Exchange, __: bytes) -> None:
    """Gives the page: chat and live view."""
    await _give(exchange, "index.html")


async def page_file(_: Gateway, exchange: Exchange, __: bytes) -> None:
    """Gives a file of the page."""
    await _give(exchange, exchange.scope["path_params"]["name"])


async def _give(exchange: Exchange, name: str) -> None:
    found = {path.name: path for path in _FOLDER.iterdir()}.get(name)
    if found is None or found.suffix not in _CONTENT_TYPES:
        raise HttpError(404, f"the page has no file {name!r:.100}", code="not_found")
    await exchange.reply(200, found.read_bytes(), _HEADERS, _CONTENT_TYPES[found.suffix])
