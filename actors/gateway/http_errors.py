"""Errors as HTTP clients see them: a status, and a body in the shape of the API that was called."""

import math
from typing import Any, Final, Literal

import msgspec

from pillion.messages.ids import ErrorCode
from pillion.runtime.errors import DaemonUnavailable, RequestError

ApiShape = Literal["openai", "anthropic"]

RETRY_AFTER_S: Final = 1

_STATUS_OF: Final[dict[ErrorCode, int]] = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "unsupported": 400,
    "overloaded": 429,
    "unavailable": 503,
    "internal": 500,
}
_OPENAI_TYPES: Final = {401: "authentication_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class HttpError(Exception):
    """A request that ends with this status. `code` is for programs, `param` names the field to change."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the response says beside its body."""
        headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers

    def body(self, shape: ApiShape) -> bytes:
        """The JSON object that says what went wrong."""
        return msgspec.json.encode(self.as_dict(shape))

    def as_dict(self, shape: ApiShape) -> dict[str, Any]:
        """The same before it is encoded."""
        if shape == "anthropic":
            kind = _ANTHROPIC_TYPES.get(self.status) or _kind(self.status, "api_error")
            return {"type": "error", "error": {"type": kind, "message": str(self)}}
        kind = _OPENAI_TYPES.get(self.status) or _kind(self.status, "server_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(message: str, param: str | None = None) -> HttpError:
    """The client must change its request."""
    return HttpError(400, message, code="invalid_request", param=param)


def unsupported(field: str, reason: str) -> HttpError:
    """The request asks for something that is not offered."""
    return HttpError(400, f"{field}: {reason}", code="unsupported", param=field)


def http_error_of(error: Exception, renamed: dict[str, str] | None = None) -> HttpError:
    """What an error of the daemon is to HTTP clients.

    `renamed`: the names that fields of the client protocol have in this API.
    """
    if isinstance(error, HttpError):
        return error
    if isinstance(error, DaemonUnavailable):
        return HttpError(503, str(error), code="unavailable", retry_after_s=RETRY_AFTER_S)
    if not isinstance(error, RequestError):
        return HttpError(500, "the server failed at this request: see its log", code="internal")
    retry_after_s = None
    if error.code in ("overloaded", "unavailable"):
        retry_after_s = max(RETRY_AFTER_S, math.ceil((error.retry_after_ms or 0) / 1000))
    message, param = str(error), error.param
    if param is not None and renamed is not None and param in renamed:
        if message.startswith(param):
            message = renamed[param] + message.removeprefix(param)
        param = renamed[param]
    return HttpError(
        _STATUS_OF[error.code],
        message,
        code=error.code,
        param=param,
        retry_after_s=retry_after_s,
    )


def _kind(status: int, server_error: str) -> str:
    return "invalid_request_error" if status < 500 else server_error
