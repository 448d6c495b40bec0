"""The web listener's ASGI application: routes, authorisation before anything is read, refusals. Runs in the daemon."""

import asyncio
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superfluid.config import Secret
from superfluid.errors import (
    InvalidRequestError,
    MethodNotAllowedError,
    RouteNotFoundError,
    ShuttingDownError,
    SuperfluidError,
)
from superfluid.http.bodies import ClientGoneError
from superfluid.http.responses import Header, send_response
from superfluid.native.dispatch import named_failure
from superfluid.sessions.session_api import SessionApi
from superfluid.web.answers import refusal_body, send_refusal
from superfluid.web.authorization import WebAuthorization
from superfluid.web.rpc import RpcEndpoint
from superfluid.web.stream import StreamEndpoint
from superfluid.web.websocket import SocketEndpoint
from superfluid.web.websocket_protocol import CLIENT_LEFT

KEEPALIVE_SECONDS = 15.0
SOCKET_PATH = "/web/ws"
HEALTH_PATH = "/web/health"


class WebApplication:
    """Four routes. ``sockets`` holds the WebSockets, which outlive the request that opened them."""

    def __init__(
        self, api: SessionApi, token: Secret, origins: Iterable[str], *, keepalive_seconds: float = KEEPALIVE_SECONDS
    ) -> None:
        self._authorization = WebAuthorization(token, origins)
        self._posts: dict[str, ASGIApp] = {
            "/web/rpc": RpcEndpoint(api),
            "/web/stream": StreamEndpoint(api, keepalive_seconds),
        }
        self.sockets = SocketEndpoint(api)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _WatchedSend(send)
        try:
            if scope["type"] == "websocket":
                await self._serve_socket(scope, receive, response)
            else:
                await self._serve_http(scope, receive, response)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            # Only a stopping server cancels requests.
            if not response.has_started:
                await _refuse(scope, response, ShuttingDownError("the server is shutting down"))
        except Exception as error:
            # Supervision point: whatever a request runs into ends this request only.
            if response.has_started:
                raise
            await _refuse(scope, response, named_failure(error))

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == HEALTH_PATH and method in ("GET", "HEAD"):
            await send_response(send, 200, b"", b"text/plain; charset=utf-8")
        elif path in self._posts and method == "POST":
            self._authorization.check_request(scope)
            await self._posts[path](scope, receive, send)
        elif path == SOCKET_PATH and method == "GET":
            self._authorization.check_socket(scope)
            error = InvalidRequestError(f"{path} is a WebSocket: ask for an upgrade")
            await send_response(send, 426, refusal_body(error), headers=[(b"upgrade", b"websocket")])
        elif path in self._posts or path in (SOCKET_PATH, HEALTH_PATH):
            raise MethodNotAllowedError(f"{path} does not answer {method}")
        else:
            raise RouteNotFoundError(
                "the web listener has /web/rpc, /web/stream, /web/ws and /web/health; OpenAI's routes are at --http"
            )

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != SOCKET_PATH:
            raise RouteNotFoundError(f"WebSockets are at {SOCKET_PATH}")
        protocol = self._authorization.check_socket(scope)
        await self.sockets.serve(protocol, receive, send, scope["extensions"][CLIENT_LEFT])


class _WatchedSend:
    """``send`` that remembers whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        self.has_started = True
        await self._send(message)


async def _refuse(scope: Scope, send: Send, error: SuperfluidError) -> None:
    headers: list[Header] = []
    if isinstance(error, MethodNotAllowedError):
        headers = [(b"allow", b"POST" if scope["path"] in ("/web/rpc", "/web/stream") else b"GET")]
    await send_refusal(send, error, over_websocket=scope["type"] == "websocket", headers=headers)
