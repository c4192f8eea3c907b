"""API keys: who may use the gateway."""

import hashlib
import hmac

from pillion.actors.gateway.exchange import Exchange
from pillion.actors.gateway.http_errors import HttpError
from pillion.runtime.config import EngineConfig
from pillion.runtime.http_settings import read_api_keys


class ApiKeys:
    """The keys that are accepted; with none at all everybody may."""

    def __init__(self, keys: list[str]) -> None:
        # Digests have one length, so that comparing takes the same time for every key.
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, exchange: Exchange) -> None:
        """Raises HttpError 401 unless the request carries a key, as OpenAI's or Anthropic's clients do."""
        if not self._digests:
            return
        scheme, _, bearer = (exchange.header(b"authorization") or b"").partition(b" ")
        given = bearer if scheme.lower() == b"bearer" else exchange.header(b"x-api-key") or b""
        digest = _digest(given.strip())
        if not any(hmac.compare_digest(digest, each) for each in self._digests):
            raise HttpError(
                401,
                "this server needs an API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
            )


def api_keys(config: EngineConfig) -> ApiKeys:
    """The keys of a configuration. Raises ConfigError if their file cannot be read or is empty."""
    keys = [config.api_key] if config.api_key is not None else []
    if config.api_key_file is not None:
        keys += read_api_keys(config.api_key_file)
    return ApiKeys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
