"""Who may speak to the listener: the guard against web pages, and the API key. Pure; runs in the daemon."""

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Mapping

from starlette.types import Scope

from superfluid.config import Secret
from superfluid.errors import InvalidApiKeyError, OriginRefusedError
from superfluid.http.responses import header_values


class BrowserGuard:
    """Refuses requests that a foreign web page could have caused (cross-site requests, DNS rebinding).

    ``listen_host`` is the address the operator asked for, ``hostname`` the machine's name.
    """

    def __init__(self, listen_host: str, *, has_key: bool, hostname: str) -> None:
        self._is_loopback_listener = is_loopback(listen_host.strip("[]").lower())
        self._is_host_free = has_key and not self._is_loopback_listener
        self._own_names = _machine_names(hostname)

    def check(self, scope: Scope) -> None:
        """Raises OriginRefusedError."""
        for origin in header_values(scope, b"origin"):
            host = _origin_host(origin.decode("latin-1"))
            if host is None or not is_loopback(host):
                raise OriginRefusedError("requests from web pages of other origins are refused")
        if self._is_host_free:
            return
        for value in header_values(scope, b"host"):
            if value.strip() and not self._is_own_host(authority_host(value.decode("latin-1"))):
                raise OriginRefusedError("the Host header names no address of this server")

    def _is_own_host(self, host: str | None) -> bool:
        if host is None:
            return False
        if is_loopback(host):
            return True
        return not self._is_loopback_listener and (_is_address(host) or host in self._own_names)


class Authenticator:
    """Compares credentials as SHA-256 digests in constant time. Without any key everybody passes.

    ``named_keys`` are those of the key policy, which ``api_key`` stands beside.
    """

    def __init__(self, api_key: Secret | None, named_keys: Mapping[str, Secret] | None = None) -> None:
        named = [(name, _digest(key.reveal().encode())) for name, key in (named_keys or {}).items()]
        self._digests: list[tuple[str | None, bytes]] = [*named]
        if api_key is not None:
            self._digests.append((None, _digest(api_key.reveal().encode())))

    def check(self, scope: Scope) -> str | None:
        """The name of the key that ``Authorization: Bearer`` or ``X-Api-Key`` carries, ``None`` for the global one and
        where there is none. Raises InvalidApiKeyError."""
        if not self._digests:
            return None
        presented = [value.strip() for value in header_values(scope, b"x-api-key")]
        for value in header_values(scope, b"authorization"):
            scheme, _, credential = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                presented.append(credential.strip())
        if not presented:
            raise InvalidApiKeyError("this server needs an API key: send it as 'Authorization: Bearer KEY'")
        # All pairs, whatever is found: how long it takes must not tell which key was nearly hit.
        digests = [_digest(value) for value in presented]
        found = [name for name, known in self._digests for digest in digests if hmac.compare_digest(digest, known)]
        if not found:
            raise InvalidApiKeyError("the API key is none of this server's")
        return found[0]


def is_loopback(host: str) -> bool:
    """Whether a host (lower case, no port, no brackets) can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_door_notice(listen_host: str, *, has_key: bool) -> tuple[int, str] | None:
    """What the operator should be told of a listener that asks nobody for a key, and at which level of the log."""
    if has_key:
        return None
    if is_loopback(listen_host.strip("[]").lower()):
        return logging.INFO, "no API key is asked for: every program on this machine can use this server"
    return logging.WARNING, f"no API key is asked for: whoever reaches {listen_host} can use this server"


def authority_host(authority: str) -> str | None:
    """The host of ``host[:port]``, in lower case, without brackets and trailing dot; ``None`` if it is no authority."""
    text = authority.strip().lower()
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        host, _, port = text.partition(":")
        host = host.removesuffix(".")
    if (port and not port.isdigit()) or not host or any(mark in host for mark in "@/\\ ?#"):
        return None
    return host


def _origin_host(origin: str) -> str | None:
    scheme, separator, authority = origin.strip().partition("://")
    return authority_host(authority) if scheme and separator else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _machine_names(hostname: str) -> frozenset[str]:
    name = hostname.lower().removesuffix(".")
    bare = name.removesuffix(".local")
    return frozenset({name, bare, f"{bare}.local"} - {"", ".local"})


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
