"""Where the HTTP server listens."""

import socket
from pathlib import Path
from typing import Any

import pytest

from pillion.runtime import http_settings
from pillion.runtime.config import EngineConfig
from pillion.runtime.errors import ConfigError
from pillion.runtime.http_settings import (
    is_http_url,
    parse_http_address,
    remove_http_socket,
    require_http_packages,
)
from pillion.runtime.supervision import ACTORS, with_gateways


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8000", "127.0.0.1", 8000),
        (":8000", "127.0.0.1", 8000),
        ("0", "127.0.0.1", 0),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
        ("localhost:80", "localhost", 80),
        ("[::1]:80", "::1", 80),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse_http_address(text) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "localhost", "a:b", "::1:80", ":65536", "h:-1", "h:8 0", "h:٣"]
)
def test_what_is_no_address_is_refused_with_the_field(text: str) -> None:
    with pytest.raises(ConfigError, match="http"):
        EngineConfig(model="m", http=text)


def test_gateways_start_only_if_there_is_something_to_serve() -> None:
    config = EngineConfig(model="m", http_gateways=3)
    assert with_gateways(ACTORS, config, ()) == list(ACTORS)
    specs = with_gateways(ACTORS, config, (5, 6))
    assert [spec.name for spec in specs[-3:]] == ["gateway", "gateway2", "gateway3"]
    assert {spec.listening_fds for spec in specs[-3:]} == {(5, 6)}
    assert len(specs) == len(ACTORS) + 3


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    require_http_packages()
    monkeypatch.setattr(http_settings, "PACKAGES", ("httptools", "not_there_at_all"))
    with pytest.raises(
        ConfigError, match=r"needs not_there_at_all: run pip install 'pillion\[http\]'"
    ):
        require_http_packages()


def test_only_sockets_are_removed(tmp_path: Path) -> None:
    remove_http_socket(tmp_path / "nothing")
    plain = tmp_path / "plain"
    plain.write_text("mine")
    remove_http_socket(plain)
    assert plain.exists()
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    remove_http_socket(path)
    assert not path.exists()


@pytest.mark.parametrize(
    "fields", [{"api_key": "k"}, {"api_key_file": "keys"}, {"http_gateways": 2}], ids=str
)
def test_what_only_an_http_server_needs_is_refused_without_one(fields: dict[str, Any]) -> None:
    EngineConfig(model="m").refuse_http_settings()
    (name,) = fields
    with pytest.raises(ConfigError, match=f"^{name} is in vain: nothing serves HTTP"):
        EngineConfig(model="m", **fields).refuse_http_settings()


@pytest.mark.parametrize("text", ["http://c", "https://c:4318/x", "http://[::1]:1", "http://u@c"])
def test_urls(text: str) -> None:
    assert is_http_url(text)


@pytest.mark.parametrize(
    "text", ["", "c", "c:4318", "http:c", "http://", "http://[::1", "http://c:x", "ftp://c"]
)
def test_what_is_no_url_of_a_server(text: str) -> None:
    assert not is_http_url(text)
