"""Requests and HTTP requests that have ended, on their way to whoever exports traces."""

from typing import NamedTuple

from pillion.actors.detokenizer.open_requests import OpenRequest
from pillion.messages.text import HttpSpan


class EndedRequest(NamedTuple):
    """One that was admitted or refused, and how it failed, if it did."""

    request: OpenRequest
    error: str | None


class Traces:
    """Keeps nothing unless the daemon traces. Whoever exports them clears both lists."""

    def __init__(self, wanted: bool) -> None:
        self.requests: list[EndedRequest] = []
        self.http: list[HttpSpan] = []
        self._wanted = wanted

    def request_ends(self, request: OpenRequest, error: str | None = None) -> None:
        """All of its samples have ended."""
        if self._wanted:
            self.requests.append(EndedRequest(request, error))

    def http_ends(self, span: HttpSpan) -> None:
        """A gateway has answered."""
        if self._wanted:
            self.http.append(span)
