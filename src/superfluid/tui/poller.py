"""Fetches metrics pages over connections that stay open. Blocks; one poller per node, in a thread."""

import http.client
import time
from typing import Final

from superfluid.tui.fleet import Answer

TIMEOUT_SECONDS: Final = 2.0
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024


class Poller:
    """``address`` is ``HOST:PORT``. A connection that the node has closed meanwhile is opened again, once."""

    def __init__(self, address: str, api_key: str | None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._address = address
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._timeout_seconds = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None

    def poll(self) -> Answer:
        """What the node says. Never raises: a node that cannot be asked has no status."""
        for is_kept in (self._connection is not None, False):
            try:
                return self._ask()
            except (OSError, http.client.HTTPException, ValueError):
                self.close()
                if not is_kept:
                    break
        return Answer(time.monotonic(), None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self) -> Answer:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._address, timeout=self._timeout_seconds)
        self._connection.request("GET", "/metrics", headers=self._headers)
        response = self._connection.getresponse()
        body = response.read(MAX_PAGE_BYTES + 1)
        if len(body) > MAX_PAGE_BYTES:
            raise ValueError("no metrics page is that long")
        return Answer(time.monotonic(), response.status, body.decode("utf-8", "replace"))


def parse_address(text: str) -> str:
    """``HOST:PORT``, an IPv6 host in brackets; also taken from a URL. Raises ValueError for anything else."""
    address = text.removeprefix("http://").rstrip("/")
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    has_odd = any(character.isspace() or character in "/?#@" for character in address)
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536 or has_odd:
        raise ValueError(text)
    if ":" in host and not is_bracketed:
        raise ValueError(text)
    return address
