"""Drops old requests that named no session, if the operator asked for it. Runs on the event loop, now and then."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from superfluid.clock import Clock
from superfluid.config import SessionsConfig
from superfluid.errors import SuperfluidError
from superfluid.sessions.log import SessionLog

logger = logging.getLogger("superfluid_daemon")

SWEEP_SECONDS = 60.0
_BATCH = 256


class RetentionSweeper:
    """Forgets HTTP sessions past their time, then the oldest while the store is over its budget.

    Sessions that others inherit from, that are in use, or that a client named are spared.
    """

    def __init__(
        self,
        log: SessionLog,
        config: SessionsConfig,
        *,
        clock: Clock,
        forget_states: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        """``forget_states`` erases what is kept of sessions besides the log."""
        self._log = log
        self._forget_states = forget_states
        self._config = config
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sweeps now and every minute, if there is a rule to sweep by."""
        if self._config.http_ttl_seconds is not None or self._config.budget_bytes is not None:
            self._task = asyncio.create_task(self._run(), name="retention")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except SuperfluidError as error:
                logger.warning("old sessions could not be dropped", extra={"fields": {"reason": error.message}})
            except Exception:
                # Supervision point: nobody looks at this task, and the disk would fill.
                logger.exception("old sessions could not be dropped")
            await asyncio.sleep(min(SWEEP_SECONDS, (self._config.http_ttl_seconds or SWEEP_SECONDS) / 4 + 1))

    async def sweep(self) -> int:
        """One round; how many sessions were dropped."""
        dropped = 0
        if self._config.http_ttl_seconds is not None:
            limit = int((self._clock.unix() - self._config.http_ttl_seconds) * 1000)
            while gone := await self._drop_oldest(touched_before_unix_ms=limit):
                dropped += gone
        budget = self._config.budget_bytes
        while budget is not None and self._log.store.statistics().used_bytes > budget:
            gone = await self._drop_oldest()
            if not gone:
                break
            dropped += gone
        if dropped:
            logger.info("dropped old sessions", extra={"fields": {"sessions": dropped}})
        return dropped

    async def _drop_oldest(self, touched_before_unix_ms: int | None = None) -> int:
        """How many are gone. The states first: who comes back after a crash in between finds the sessions, and forgets
        them again."""
        rows = await self._log.oldest_http_sessions(_BATCH, touched_before_unix_ms=touched_before_unix_ms)
        return len(await self._log.forget([row.id for row in rows], erase_states=self._forget_states))
