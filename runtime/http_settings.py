"""Who serves HTTP and where, and whether what that needs is installed."""

import importlib.util
import stat
from pathlib import Path
from typing import Final

from pillion.runtime.errors import ConfigError

DEFAULT_HOST: Final = "127.0.0.1"
MAX_PORT: Final = 65535
GATEWAY: Final = "gateway"  # the first actor that serves HTTP; the others have a number behind it
PACKAGES: Final = ("httptools", "starlette", "uvicorn")


def is_gateway(actor: str) -> bool:
    """Whether this actor is one of those that serve HTTP."""
    return actor.startswith(GATEWAY)


def parse_http_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT", ":PORT" or "PORT"; IPv6 hosts in brackets. Port 0: any free one.

    Without a host nothing beyond this machine is served. Raises ConfigError.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"http: an IPv6 host needs brackets, [HOST]:PORT, got {text!r:.80}")
    if not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ConfigError(
            f"http must be HOST:PORT or PORT with a port from 0 to {MAX_PORT}, got {text!r:.80}"
        )
    return host or DEFAULT_HOST, int(port)


def is_http_url(text: str) -> bool:
    """Whether this is a URL of a server, as far as that can be told without asking it."""
    from urllib.parse import urlsplit  # only a setting that holds one needs it

    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets or the port
        return False


def require_http_packages() -> None:
    """Raises ConfigError that says what to install, if a package of the HTTP server is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the HTTP server needs {', '.join(missing)}: run pip install 'pillion[http]'"
        )


def read_api_keys(path: str) -> list[str]:
    """The keys of an api_key_file. Raises ConfigError if it cannot be read or has none."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read api_key_file {path}: {error}") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigError(f"api_key_file {path} holds no key")
    return keys


def remove_http_socket(path: Path) -> None:
    """Removes the socket file of a gateway that has ended, however it ended; anything else stays."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
