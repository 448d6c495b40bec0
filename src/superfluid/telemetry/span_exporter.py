"""Sends finished spans to a collector from a thread of its own, so that a slow or dead one delays nobody. Daemon.

Whatever does not fit into the queue or is not taken at the first try is dropped and counted.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from superfluid.domain.statistics import SpanCounts
from superfluid.telemetry.otlp_http import CollectorClient, CollectorError, rejected_spans
from superfluid.telemetry.spans import FinishedSpan

MAX_BATCH_SPANS: Final = 512

_logger = logging.getLogger("superfluid_daemon::otlp")

Encode = Callable[[Sequence[FinishedSpan]], bytes]


class SpanExporter:
    """``put`` comes from the event loop and never waits. ``client`` is made inside the thread that uses it."""

    def __init__(
        self, encode: Encode, client: Callable[[], CollectorClient], *, queue_spans: int, batch_seconds: float
    ) -> None:
        self._encode = encode
        self._client = client
        self._limit = queue_spans
        self._batch_seconds = batch_seconds
        self._queue: deque[FinishedSpan] = deque()
        self._counts = SpanCounts()
        self._queue_full = 0
        self._is_failing = False
        self._is_closing = False
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="otlp spans", daemon=True)

    @property
    def counts(self) -> SpanCounts:
        counts = self._counts
        return SpanCounts(counts.exported, self._queue_full, counts.export_failed, counts.rejected)

    def start(self) -> None:
        self._thread.start()

    def put(self, span: FinishedSpan) -> None:
        if self._is_closing or len(self._queue) >= self._limit:
            self._queue_full += 1
        else:
            self._queue.append(span)

    def close(self, timeout_seconds: float) -> None:
        """Sends what waits, for at most so long. Blocks."""
        self._is_closing = True
        self._wake()
        self._thread.join(timeout_seconds)

    # ---- in the thread

    def _run(self) -> None:
        asyncio.run(self._export())

    async def _export(self) -> None:
        client = self._client()
        closing = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake = lambda: _set_soon(loop, closing)
        try:
            # One wake-up an interval: the engine computes on the same cores.
            while not self._is_closing:
                await _wait_for(closing, self._batch_seconds)
                await self._send_all(client)
            await self._send_all(client)
        finally:
            await client.close()

    async def _send_all(self, client: CollectorClient) -> None:
        while self._queue:
            await self._send_batch(client)

    async def _send_batch(self, client: CollectorClient) -> None:
        batch = list(islice(self._queue, MAX_BATCH_SPANS))
        for _ in batch:
            self._queue.popleft()
        try:
            answer = await client.post(self._encode(batch))
        except CollectorError as error:
            self._count(export_failed=len(batch))
            if not self._is_failing:
                self._is_failing = True
                _logger.warning("spans are not getting through to the collector: %s", error)
            return
        rejected = rejected_spans(answer, len(batch))
        self._count(exported=len(batch) - rejected, rejected=rejected)
        if self._is_failing:
            self._is_failing = False
            _logger.info("spans are getting through to the collector again")

    def _count(self, *, exported: int = 0, export_failed: int = 0, rejected: int = 0) -> None:
        """One thread writes; readers get one record or the next."""
        counts = self._counts
        self._counts = SpanCounts(
            counts.exported + exported, 0, counts.export_failed + export_failed, counts.rejected + rejected
        )


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
