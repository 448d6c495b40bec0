"""Who may use the web listener: the token, the CSRF echo, origins, and the Host header. Pure; runs in the daemon.

Every header of a kind must be right, so that a second one cannot hide behind a first.
"""

import hmac
from collections.abc import Iterable, Sequence

from starlette.types import Scope

from superfluid.config import Secret
from superfluid.errors import InvalidApiKeyError, InvalidRequestError, OriginRefusedError
from superfluid.http.guards import authority_host, is_loopback
from superfluid.http.responses import header_values

PROTOCOL = "superfluid.v1"
TOKEN_PROTOCOL_PREFIX = "superfluid.token."
CSRF_HEADER = b"x-superfluid-csrf"


class WebAuthorization:
    """``origins`` are compared as they are written."""

    def __init__(self, token: Secret, origins: Iterable[str]) -> None:
        self._token = token.reveal().encode()
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)

    def check_request(self, scope: Scope) -> None:
        """For ``/web/rpc`` and ``/web/stream``. Raises InvalidApiKeyError, OriginRefusedError."""
        check_host(scope)
        self._check_token(header_values(scope, b"authorization"), ())
        self._check_origins(header_values(scope, b"origin"))
        echoes = header_values(scope, CSRF_HEADER)
        if not echoes or not all(self._is_token(echo) for echo in echoes):
            raise OriginRefusedError("X-Superfluid-CSRF must repeat the token")

    def check_socket(self, scope: Scope) -> str | None:
        """For ``/web/ws``: the subprotocol to agree on. Raises what ``check_request`` does, and InvalidRequestError."""
        check_host(scope)
        offered = offered_protocols(scope)
        tokens = [
            name.removeprefix(TOKEN_PROTOCOL_PREFIX) for name in offered if name.startswith(TOKEN_PROTOCOL_PREFIX)
        ]
        self._check_token(header_values(scope, b"authorization"), tokens)
        origins = header_values(scope, b"origin")
        if not origins:
            raise OriginRefusedError("a WebSocket needs an Origin header, and --web-origin must name it")
        self._check_origins(origins)
        if not offered:
            return None
        if PROTOCOL not in offered:
            raise InvalidRequestError(f"the offered subprotocols must include {PROTOCOL}")
        return PROTOCOL

    def _check_token(self, headers: Sequence[bytes], tokens: Sequence[str]) -> None:
        if not headers and not tokens:
            raise InvalidApiKeyError("the web token is needed: send it as 'Authorization: Bearer TOKEN'")
        are_right = [hmac.compare_digest(header, b"Bearer " + self._token) for header in headers]
        are_right += [self._is_token(token.encode("latin-1", "replace")) for token in tokens]
        if not all(are_right):
            raise InvalidApiKeyError("the web token is not the one of this server; it changes at every start")

    def _check_origins(self, origins: Sequence[bytes]) -> None:
        if not all(origin in self._origins for origin in origins):
            raise OriginRefusedError("the page's origin is not allowed: name it with --web-origin")

    def _is_token(self, value: bytes) -> bool:
        return hmac.compare_digest(value, self._token)


def offered_protocols(scope: Scope) -> list[str]:
    """The WebSocket subprotocols a client offers, in order."""
    lines = header_values(scope, b"sec-websocket-protocol")
    return [name.strip() for line in lines for name in line.decode("latin-1").split(",") if name.strip()]


def check_host(scope: Scope) -> None:
    """Refuses a name that was made to point at this machine (DNS rebinding). Raises OriginRefusedError."""
    for value in header_values(scope, b"host"):
        host = authority_host(value.decode("latin-1"))
        if host is None or not is_loopback(host):
            raise OriginRefusedError("the Host header names no loopback address")
