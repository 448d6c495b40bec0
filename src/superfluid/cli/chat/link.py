"""The chat's connection to the server: made when needed, made again after it was lost, a second one to cancel."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from superfluid.errors import ConnectionLostError, RequestRefusedError, ServerUnreachableError
from superfluid.native import requests, responses
from superfluid.native.client import SessionClient
from superfluid.native.requests import Request
from superfluid.native.responses import Response

CANCEL_SECONDS = 2.0

R = TypeVar("R", bound=Response)


class Link:
    """At most one connection at a time. After ConnectionLostError the next call makes a new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._client: SessionClient | None = None

    def close(self) -> None:
        """Ends the connection, and with it a generation of ours. To be called when a request was interrupted, too:
        its reply must not be taken for that of the next."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, request: Request, reply_type: type[R]) -> R:
        """Raises RequestRefusedError, ServerUnreachableError, ConnectionLostError."""
        try:
            return self._connected().ask(request, reply_type)
        except RequestRefusedError:
            raise
        except BaseException:
            self.close()
            raise

    def send(self, request: Request) -> None:
        """Begins a request that is answered by more than one reply."""
        try:
            self._connected().send(request)
        except ConnectionLostError:
            self.close()
            raise

    def receive(self, timeout_seconds: float) -> Response | None:
        """The next reply to what was sent, ``None`` if none came."""
        try:
            return self._connected().receive(timeout_seconds)
        except ConnectionLostError:
            self.close()
            raise

    def can_connect(self) -> bool:
        """Whether a server answers now."""
        try:
            self._connected()
        except ServerUnreachableError:
            return False
        return True

    def cancel(self, session: int) -> None:
        """Ends the generation in flight, from another connection. Without effect if there is none any more, and if the
        server does not answer soon."""
        try:
            with SessionClient(self.path, reply_seconds=CANCEL_SECONDS) as second:
                second.ask(requests.Cancel(session), responses.Cancelling)
        except (RequestRefusedError, ServerUnreachableError, ConnectionLostError):
            # It ended meanwhile, or went with the server.
            return

    def _connected(self) -> SessionClient:
        if self._client is None:
            self._client = SessionClient(self.path)
        return self._client


def followed(path: Path, session: int, cursor: int, *, poll_seconds: float) -> Iterator[responses.SubEvent | None]:
    """What is added to a session from event ``cursor`` on, by whomever; ``None`` whenever nothing came for a while.

    One that reads too slowly is cut off by the server and goes on where it was. Ends with the session.
    """
    with SessionClient(path) as client:
        client.ask(requests.Subscribe(session, cursor, False), responses.Subscribed)
        while True:
            reply = client.receive(poll_seconds)
            match reply:
                case responses.SubEvent(_, event):
                    cursor = event.event_id + 1
                    yield reply
                case responses.SubEnded(_, reason):
                    if reason != "lagged":
                        return
                    client.ask(requests.Subscribe(session, cursor, False), responses.Subscribed)
                case _:
                    yield None


def is_loading(error: RequestRefusedError) -> bool:
    """Whether the refusal passes by itself, when the model is loaded."""
    return "still loading" in error.message or "still being loaded" in error.message


def is_busy(error: RequestRefusedError) -> bool:
    """Whether the session was answering somebody else."""
    return " is generating;" in error.message
