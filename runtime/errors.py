"""Errors that users meet."""

from typing import Literal

from pillion.messages.ids import ErrorCode


class PillionError(Exception):
    """The root of Pillion's own errors."""


class ConfigError(PillionError, ValueError):
    """A setting cannot work. The message names the field and the sum that does not fit."""


class ModelError(PillionError):
    """A model cannot be found, read or run; the message says which file and what to do."""


class RequestError(PillionError):
    """A request was refused or failed. `code` says whose fault it is, `param` what to change."""

    def __init__(
        self,
        message: str,
        code: ErrorCode = "internal",
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.retry_after_ms = retry_after_ms


class InvalidRequest(RequestError, ValueError):
    """The client must change the request."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: Literal["invalid_request", "context_length_exceeded"] = "invalid_request",
    ) -> None:
        super().__init__(message, code, param)


class DaemonUnavailable(PillionError, ConnectionError):
    """No daemon answers under this name, or the connection to it was lost.

    `may_pass`: another attempt may succeed as long as the daemon lives.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class InvariantBroken(PillionError, AssertionError):
    """A bug in the ring. It ends the actor; supervision does the rest."""
