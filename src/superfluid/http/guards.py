"""Who may speak to the listener: the guard against web pages, and the API key. Pure; runs in the daemon."""

import hashlib
import hmac
import ipaddress

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
    """Compares credentials as SHA-256 digests in constant time. Without a key everybody passes."""

    def __init__(self, api_key: Secret | None) -> None:
        self._digest = None if api_key is None else _digest(api_key.reveal().encode())

    def check(self, scope: Scope) -> None:
        """Raises InvalidApiKeyError unless ``Authorization: Bearer`` or ``X-Api-Key`` carries the key."""
        if self._digest is None:
            return
        presented = [value.strip() for value in header_values(scope, b"x-api-key")]
        for value in header_values(scope, b"authorization"):
            scheme, _, credential = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                presented.append(credential.strip())
        if not presented:
            raise InvalidApiKeyError("this server needs an API key: send it as 'Authorization: Bearer KEY'")
        if not any(hmac.compare_digest(_digest(value), self._digest) for value in presented):
            raise InvalidApiKeyError("the API key is not the one of this server")


def is_loopback(host: str) -> bool:
    """Whether a host (lower case, no port, no brackets) can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
