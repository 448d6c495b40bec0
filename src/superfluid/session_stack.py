"""Everything that keeps sessions, put together: directory, store, log, session API, its transports, retention.

Runs in the daemon; the composition root opens it before the model is loaded and closes it last.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from superfluid.clock import Clock
from superfluid.config import SessionsConfig
from superfluid.domain.statistics import SessionStatistics
from superfluid.errors import ModelLoadingError, SuperfluidError
from superfluid.http.server import bind_listener
from superfluid.kvfiles.erasing import claim_directory
from superfluid.kvfiles.names import KV_DIRECTORY
from superfluid.native.postcard import body_codec
from superfluid.native.socket_server import SocketServer
from superfluid.sessions.api import Sessions
from superfluid.sessions.backend import GenerationBackend
from superfluid.sessions.chats import ChatStore
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.erasing import Eraser, StateEraser
from superfluid.sessions.infill import InfillService
from superfluid.sessions.log import SessionLog
from superfluid.sessions.metering import CompletionMeter
from superfluid.sessions.purge import SessionPurger
from superfluid.sessions.retention import RetentionSweeper
from superfluid.sessions.text import SessionText
from superfluid.sessions.tools import tool_lease
from superfluid.store.directory import SessionsDirectory
from superfluid.store.media import MediaPool
from superfluid.store.sqlite import SqliteStore
from superfluid.web.server import WebServer
from superfluid.web.token import TOKEN_FILE, mint_token, write_token

logger = logging.getLogger("superfluid_daemon")


class SessionStack:
    """Opened by its constructor, which blocks; raises StoreError, AddressUnavailableError or UsageError."""

    def __init__(self, config: SessionsConfig, *, clock: Clock) -> None:
        assert config.directory is not None
        self._config = config
        self._clock = clock
        # The address first, so that a taken one leaves no trace.
        self._web_listener = None if config.web is None else bind_listener(*config.web)
        self._directory = SessionsDirectory(config.directory)
        self._store = self._open_store()
        self._claim_kv_files()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._log = SessionLog(self._store, body_codec(), clock=clock, reader=self._reader)
        self._purger = SessionPurger(self._log)
        self._media = MediaPool(self._directory.media_path)
        self._text: SessionText | None = None
        self._socket: SocketServer | None = None
        self._web: WebServer | None = None
        self._web_task: asyncio.Task[None] | None = None
        self._retention: RetentionSweeper | None = None

    def _open_store(self) -> SqliteStore:
        store = SqliteStore(self._directory.store_path)
        size = store.statistics()
        facts = {"sessions_made": size.sessions_total, "bytes": size.file_bytes, "used_bytes": size.used_bytes}
        logger.info("the session store is open", extra={"fields": {"path": str(self._directory.path), **facts}})
        return store

    def _claim_kv_files(self) -> None:
        config = self._config
        is_kept = config.is_parked or config.prefix_budget_bytes > 0
        try:
            claim_directory(self._directory.path / KV_DIRECTORY, self._store.store_id, is_kept=is_kept)
        except OSError as error:
            logger.warning("the directory of KV files cannot be used: %s", error.strerror)

    @property
    def store_id(self) -> bytes:
        """16 bytes that name the store."""
        return self._store.store_id

    @property
    def media_path(self) -> str:
        """Where the worker finds images."""
        return str(self._directory.media_path)

    @property
    def token_path(self) -> str:
        return str(self._directory.path / TOKEN_FILE)

    def banner_lines(self) -> list[str]:
        """Where the sessions are, for the person who started the server."""
        lines = [f"sessions in {self._directory.path}; session API on {self._config.socket}"]
        if self._web is not None:
            lines.append(f"session API for programs and pages on {self._web.url}; token in {self.token_path}")
        return lines

    def statistics(self) -> SessionStatistics:
        store = self._store.statistics()
        return SessionStatistics(
            sessions_open=self._log.open_sessions,
            store_bytes=store.file_bytes,
            store_used_bytes=store.used_bytes,
            commits_total=store.commits_total,
            failed_commits_total=store.failed_commits_total,
            events_total=store.events_total,
            last_commit_seconds=store.last_commit_seconds,
        )

    def add_eraser(self, eraser: Eraser) -> None:
        """Lets a keeper of what was made from sessions join in erasing purged ones. Must come before ``serve``."""
        self._purger.add_eraser(eraser)

    async def serve(
        self,
        backend: GenerationBackend,
        *,
        counter: ReplyCounter,
        executor: Executor,
        metrics_text: Callable[[], str],
        set_log_level: Callable[[str], None],
        infill: InfillService,
        meter: CompletionMeter,
        drain_seconds: float,
    ) -> None:
        """Opens the session API on its transports. Requests that need the model are refused until ``attach_text``."""
        api = Sessions(
            self._log,
            backend,
            self._loaded_text,
            counter=counter,
            executor=executor,
            unix_ms=self._unix_ms,
            metrics_text=metrics_text,
            set_log_level=set_log_level,
            purger=self._purger,
            infill=infill,
            meter=meter,
            media_pool=self._media,
            decode_body=body_codec().decode,
            tool_lease_ms=self._config.tool_lease_ms,
        )
        self.add_eraser(api.media)
        self.add_eraser(StateEraser(backend))
        assert self._config.socket is not None
        self._socket = SocketServer(api, self._config.socket)
        await self._socket.start()
        if self._web_listener is not None:
            token = mint_token()
            write_token(self._directory.path, token)
            self._web = WebServer(
                api, self._web_listener, token, self._config.web_origins, drain_timeout_seconds=drain_seconds
            )
            self._web_task = asyncio.create_task(self._web.serve(), name="web listener")
        await self._log.repair()
        await self._finish_purges()
        self._retention = RetentionSweeper(self._log, self._config, clock=self._clock, forget_states=backend.forget)
        self._retention.start()

    async def _finish_purges(self) -> None:
        try:
            await self._purger.finish()
        except SuperfluidError as error:
            logger.warning("purged sessions could not be erased", extra={"fields": {"reason": error.message}})

    def attach_text(self, text: SessionText) -> ChatStore:
        """The model's text is there: sessions can be appended to, and HTTP requests stored."""
        self._text = text
        return ChatStore(
            self._log,
            text,
            commit_interval_seconds=self._config.http_commit_seconds,
            lease_deadline_unix_ms=tool_lease(self._config.tool_lease_ms, self._unix_ms),
        )

    async def drain(self, seconds: float, *, at_once: bool) -> None:
        """Takes no new clients and lets what runs finish, for at most ``seconds``."""
        stopping: list[Awaitable[None]] = []
        if self._socket is not None:
            stopping.append(self._socket.stop(drain_seconds=0.0 if at_once else seconds))
        if self._web is not None and self._web_task is not None:
            self._web.stop(at_once=at_once)
            stopping.append(asyncio.shield(self._web_task))
        await asyncio.gather(*stopping)

    async def close(self) -> None:
        """Commits what waits and closes the store. Call it after the worker has stopped; clients that were not drained
        are cut."""
        # What went wrong with the listeners must not keep the store from being closed.
        await asyncio.gather(self.drain(0.0, at_once=True), return_exceptions=True)
        if self._retention is not None:
            await self._retention.stop()
        await self._log.settled()
        await asyncio.get_running_loop().run_in_executor(None, self._store.close)
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._directory.close()

    def _unix_ms(self) -> int:
        return int(self._clock.unix() * 1000)

    def _loaded_text(self) -> SessionText:
        if self._text is None:
            raise ModelLoadingError("the model is still loading")
        return self._text
