"""The client of one daemon, over its web listener."""

import os
from types import TracebackType
from typing import Self

from superfluid_client.async_client import DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL, AsyncClient
from superfluid_client.async_session import AsyncSession
from superfluid_client.blocking import BlockingNetwork, blocking
from superfluid_client.session import Session, blocking_session


class Client:
    """Speaks to one daemon. Needs no closing, makes no connection before the first request, and may be shared by
    threads: each of them can stream another session."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        """``url`` is what the daemon prints for ``--web``. The token is ``token``, else what ``token_file`` holds, else
        what ``$SUPERFLUID_HOME/sessions/web-token`` does. ``timeout`` is in seconds and for each answer; a stream may
        be silent for at least a minute. A model that is still loading is waited for as long. ``socket`` is the daemon's
        unix socket, for ``watch``; by default ``superfluid.sock`` beside the directory of the token file.
        Raises ValueError for an address that is none."""
        self._core = AsyncClient(url, token, token_file, timeout, socket, network=BlockingNetwork())

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    @property
    def url(self) -> str:
        return self._core.url

    @property
    def timeout_seconds(self) -> float:
        return self._core.timeout_seconds

    session = blocking_session(AsyncClient.session)
    get = blocking_session(AsyncClient.get)

    def session_of(self, session_id: int) -> Session:
        """As ``get``, without asking whether there is one."""
        return self._face_of(self._core.session_of(session_id))

    session_ids = blocking(AsyncClient.session_ids)
    sessions = blocking(AsyncClient.sessions)
    tree = blocking(AsyncClient.tree)

    complete = blocking(AsyncClient.complete)
    put_media = blocking(AsyncClient.put_media)
    gc_media = blocking(AsyncClient.gc_media)

    set_background_rate = blocking(AsyncClient.set_background_rate)
    metrics = blocking(AsyncClient.metrics)
    set_log_level = blocking(AsyncClient.set_log_level)
    is_healthy = blocking(AsyncClient.is_healthy)
    wait_until_healthy = blocking(AsyncClient.wait_until_healthy)

    call = blocking(AsyncClient.call)
    ask = blocking(AsyncClient.ask)

    def close(self) -> None:
        """Closes idle connections. The client goes on working."""
        self._core.close()

    def _face_of(self, core: AsyncSession) -> Session:
        return Session(self, core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
