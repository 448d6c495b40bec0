"""Reads KV files for queued jobs, and sees what becomes of them. On the tick loop."""

import logging
from collections.abc import Collection
from typing import Final

from superfluid.clock import Clock
from superfluid.engine.lane_state import LaneState
from superfluid.kvfiles.service import KvRead
from superfluid.scheduling.parks import Parks
from superfluid.scheduling.plan import StepPlan
from superfluid.worker.executor import Execution, Executor
from superfluid.worker.kv_catalog import KvCatalog, KvFileThreads

READ_PATIENCE_SECONDS: Final = 10.0
"""A job does not wait longer than this for a file, whatever the disk is doing."""

_logger = logging.getLogger("superfluid_daemon::scheduler")


class Resuming:
    """Keeps track of the files that are being read, and of the host entries that came of them."""

    def __init__(
        self, files: KvFileThreads, parks: Parks, executor: Executor, catalog: KvCatalog, *, clock: Clock
    ) -> None:
        self._files = files
        self._parks = parks
        self._executor = executor
        self._catalog = catalog
        self._clock = clock
        self._reading: dict[int, float] = {}
        self._loaded: dict[int, int] = {}

    @property
    def deadlines(self) -> Collection[float]:
        """When to give up the files that are being read."""
        return self._reading.values()

    def start_reads(self) -> None:
        for file in self._parks.wanted_reads():
            self._reading[file.file_id] = self._clock.monotonic() + READ_PATIENCE_SECONDS
            self._files.read(self._catalog.name(file.file_id), file.tokens)

    def give_up_late_reads(self) -> None:
        if not self._reading:
            return
        now = self._clock.monotonic()
        for file_id in [file_id for file_id, deadline in self._reading.items() if deadline < now]:
            _logger.warning("a KV file is not read in time: whoever waits goes on without")
            del self._reading[file_id]
            self._parks.file_failed(file_id)

    def gone(self, file_id: int) -> None:
        """The file is not to be used any more: what comes of its reading is of no interest."""
        self._reading.pop(file_id, None)

    def take(self, event: KvRead) -> None:
        file_id = self._catalog.file_id(event.name)
        if event.is_damaged:
            self._catalog.count(damaged=1)
        if file_id is None:
            return
        self._reading.pop(file_id, None)
        if event.state is None:
            self._drop(file_id)
            return
        state = LaneState(event.state)
        entry_id = self._parks.file_came(file_id, len(state), event.seconds)
        if entry_id is not None:
            self._executor.host_cache.put(entry_id, state)
            self._loaded[entry_id] = file_id

    def restored(self, plan: StepPlan, execution: Execution) -> list[tuple[int, int, int]]:
        """Job, tokens and bytes of each state that came from a file."""
        found: list[tuple[int, int, int]] = []
        for place in plan.placements:
            if place.entry_id in self._loaded and place.lane not in execution.cold_lanes:
                state = self._executor.host_cache.state(place.entry_id)
                found.append((place.job_id, place.entry_length, 0 if state is None else len(state)))
        return found

    def after_tick(self, plan: StepPlan, execution: Execution) -> None:
        """Counts the jobs that went on from a file, and removes files that the engine did not take."""
        for place in plan.placements:
            file_id = None if place.entry_id is None else self._loaded.get(place.entry_id)
            if file_id is None:
                continue
            if place.lane not in execution.cold_lanes:
                self._catalog.count(resumes=1)
            elif file_id in self._parks.index:
                self._catalog.count(damaged=1)
                self._files.remove([self._catalog.name(file_id)])
                self._drop(file_id)
        for drop in plan.drops:
            self._loaded.pop(drop.entry_id, None)

    def _drop(self, file_id: int) -> None:
        self._parks.file_failed(file_id)
        self._parks.index.discard(file_id)
        self._catalog.removed(file_id)
