"""The routes of the gateway as one ASGI application."""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pillion.actors.gateway.exchange import ClientGone, Exchange
from pillion.actors.gateway.gateway import Gateway
from pillion.actors.gateway.http_errors import HttpError, http_error_of
from pillion.actors.gateway.routes import ROUTES, RouteSpec
from pillion.actors.gateway.server_span import ServerSpan
from pillion.runtime.clock import NS_PER_S, now_ns
from pillion.runtime.errors import DaemonUnavailable, RequestError

logger = logging.getLogger(__name__)

# What is counted for a client that left before its response had begun; nobody receives it.
STATUS_CLIENT_GONE: Final = 499

_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")


class Endpoint:
    """One route: key, body, work while the client is there, errors in the API's shape, counts."""

    def __init__(self, gateway: Gateway, spec: RouteSpec) -> None:
        self._gateway = gateway
        self._spec = spec

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        exchange = Exchange(scope, receive, send, _request_id(scope))
        exchange.api_shape = self._spec.api_shape
        started_ns = now_ns()
        if self._spec.events and self._gateway.config.otlp_endpoint is not None:
            exchange.span = ServerSpan.of(exchange)
        try:
            await self._serve(exchange)
        except ClientGone:
            exchange.status = exchange.status or STATUS_CLIENT_GONE
        finally:
            if exchange.span is not None:
                span = exchange.span.end(exchange, self._spec.method, self._spec.path)
                self._gateway.link.tell(span)
            seconds = (now_ns() - started_ns) / NS_PER_S
            self._gateway.metrics.count_response(
                self._spec.method, self._spec.path, exchange.status, seconds
            )

    async def _serve(self, exchange: Exchange) -> None:
        try:
            if self._spec.guarded:
                self._gateway.keys.check(exchange)
            data = await exchange.read_body()
            await exchange.while_connected(self._work(exchange, data))
        except (HttpError, RequestError, DaemonUnavailable) as error:
            await _tell(exchange, http_error_of(error))
        except ClientGone:
            raise
        except Exception as error:
            logger.exception("%s failed", self._spec.path)
            await _tell(exchange, http_error_of(error))

    async def _work(self, exchange: Exchange, data: bytes) -> None:
        await self._spec.serve(self._gateway, exchange, data)


async def _tell(exchange: Exchange, error: HttpError) -> None:
    """Answers with an error; a stream that has begun has told it already."""
    if not exchange.status:
        await exchange.reply(error.status, error.body(exchange.api_shape), error.headers)


def make_app(gateway: Gateway) -> ASGIApp:
    """The application."""
    routes = [Route(spec.path, Endpoint(gateway, spec), methods=[spec.method]) for spec in ROUTES]
    handlers = {404: _not_found(gateway), 405: _not_allowed(gateway)}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return _without_late_writes(_without_last_slash(app))


def _without_last_slash(app: ASGIApp) -> ASGIApp:
    """Serves a path with a slash behind it like the path: a redirect would name the wrong scheme behind a proxy."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "path": scope["path"].rstrip("/") or "/"}, receive, send)

    return serve


def _without_late_writes(app: ASGIApp) -> ASGIApp:
    """Drops what is sent over a connection that has just been closed, and waits until uvicorn has heard of that."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope.get("pillion.transport")

        async def send_if_open(message: Message) -> None:
            try:
                await send(message)
            except RuntimeError:  # uvloop's word for a transport that is closed
                if transport is None or not transport.is_closing():
                    raise
                while (await receive())["type"] != "http.disconnect":
                    pass

        await app(scope, receive, send_if_open)

    return serve


def _not_found(gateway: Gateway) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, _: Exception) -> Response:
        message = f"there is no route {request.method} {request.url.path[:200]}"
        return _routing_error(gateway, request, HttpError(404, message, code="not_found"))

    return answer


def _not_allowed(gateway: Gateway) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, _: Exception) -> Response:
        methods = [spec.method for spec in ROUTES if spec.path == request.scope["route"].path]
        message = f"{request.url.path[:200]} takes {' or '.join(methods)}, not {request.method}"
        error = HttpError(405, message, code="method_not_allowed")
        response = _routing_error(gateway, request, error)
        response.headers["allow"] = ", ".join(methods)
        return response

    return answer


def _routing_error(gateway: Gateway, request: Request, error: HttpError) -> Response:
    gateway.metrics.count_response("any", "other", error.status, 0.0)
    headers = {"x-request-id": _request_id(request.scope)}
    return Response(error.body("openai"), error.status, headers, "application/json")


def _request_id(scope: Scope) -> str:
    """The client's own id if it is a plain word, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex
