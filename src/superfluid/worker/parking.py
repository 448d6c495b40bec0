"""Keeps states warm over a lost lane and a restart: has saved what jobs have left, and read what queued jobs need. On
the tick loop.

Exporting a lane stalls the ticks for some milliseconds, so one at most is exported between two of them: as soon as
nothing runs, and else within a hundredth of the time. What was exported serves both as the copy in host memory and for
the file. Everything else is done by the threads of ``kvfiles``.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final, assert_never

from superfluid.clock import Clock
from superfluid.domain.job import ParkKind
from superfluid.engine.lane_state import State
from superfluid.kvfiles.directory import FoundFile
from superfluid.kvfiles.service import KvErased, KvEvent, KvNotWritten, KvOpened, KvRead, KvRemoved, KvWrite, KvWritten
from superfluid.scheduling.copies import Copies
from superfluid.scheduling.kv_index import KvFile
from superfluid.scheduling.parks import MIN_PARK_TOKENS, Parkable, Parks
from superfluid.scheduling.plan import StepPlan
from superfluid.worker.executor import Execution, Executor
from superfluid.worker.kv_catalog import KvCatalog, KvFileThreads
from superfluid.worker.leftovers import Export, Leftovers
from superfluid.worker.protocol import Forget, Forgotten, FromWorker, KvSpan
from superfluid.worker.resuming import Resuming

CLOSE_SECONDS: Final = 3.0

_logger = logging.getLogger("superfluid_daemon::scheduler")


class Parking:
    """``files`` is ``None`` where nothing is kept on the disk.

    ``kinds`` are those that are kept. States of more than ``window_tokens`` cannot be taken in.
    """

    def __init__(
        self,
        files: KvFileThreads | None,
        kinds: Collection[ParkKind],
        parks: Parks,
        copies: Copies,
        executor: Executor,
        send: Callable[[FromWorker], None],
        *,
        clock: Clock,
        window_tokens: int,
        is_traced: bool = False,
    ) -> None:
        self._is_traced = is_traced
        self._files = files
        self._kinds = kinds
        self._parks = parks
        self._copies = copies
        self._executor = executor
        self._send = send
        self._clock = clock
        self._window_tokens = window_tokens
        self._catalog = KvCatalog(can_truncate=parks.can_truncate)
        self._leftovers = Leftovers(parks, copies, lambda: files is not None and files.can_write, clock)
        self._resuming = None if files is None else Resuming(files, parks, executor, self._catalog, clock=clock)
        parks.use_saves(self._is_save_of_use)
        self._forgotten: set[int] = set()
        self._last_write_id = 0
        self._busy_writes: set[int] = set()

    # ---- around a tick

    def before_plan(self) -> None:
        """Lets jobs go on whose file does not come."""
        if self._resuming is not None:
            self._resuming.give_up_late_reads()

    def after_plan(self) -> None:
        """Has the files read that queued jobs wait for."""
        if self._resuming is not None:
            self._resuming.start_reads()

    def after_tick(self, plan: StepPlan, execution: Execution) -> None:
        """Takes note of what was restored, saved and lost, and of what jobs have left in lanes."""
        if plan.has_moves:
            if self._files is not None and plan.saves:
                self._write_saved(plan, execution, self._files)
            self._forget_placed(plan)
            if self._resuming is not None:
                self._resuming.after_tick(plan, execution)
        self._look_at_lanes()
        self._report()

    def restored(self, plan: StepPlan, execution: Execution) -> list[tuple[int, int, int]]:
        """Job, tokens and bytes of each state that came from the disk into a lane in the tick. Before
        ``after_tick``."""
        return [] if self._resuming is None else self._resuming.restored(plan, execution)

    def park_one(self, *, is_busy: bool) -> bool:
        """Exports the lane that has waited longest, if its time has come. ``is_busy``: jobs are running."""
        export = self._leftovers.next_export(is_busy=is_busy)
        if export is not None:
            self._save(export, is_busy=is_busy)
        return export is not None

    def seconds_to_wait(self) -> float | None:
        """How long the loop may sleep when it has nothing to do; ``None``: until a message comes."""
        now = self._clock.monotonic()
        times = [] if self._resuming is None else [deadline - now for deadline in self._resuming.deadlines]
        settled = self._leftovers.seconds_to_wait()
        if settled is not None:
            times.append(settled)
        return max(0.001, min(times)) if times else None

    def close(self) -> None:
        """Parks what is left and waits for the writes, for at most three seconds."""
        files = self._files
        if files is None:
            return
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        self._leftovers.hurry()
        while self._leftovers and (seconds := deadline - self._clock.monotonic()) > 0:
            files.wait_room(seconds)
            if not self.park_one(is_busy=False):
                break
        files.close(max(0.0, deadline - self._clock.monotonic()))

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong. For tests, between ticks."""
        self._catalog.check_integrity()
        assert len(self._catalog) == len(self._parks.index)
        self._leftovers.check_integrity(self._parks.lanes)

    def emptied(self, lanes: Collection[int]) -> None:
        """These lanes have been cleared, and no job was on them."""
        for lane in lanes:
            self._leftovers.pop(lane)

    # ---- messages

    def take(self, event: KvEvent) -> None:
        """Acts on what came of a request to the threads."""
        match event:
            case KvOpened():
                self._opened(event)
            case KvWritten():
                self._written(event)
            case KvNotWritten():
                self._parks.abandon_write(event.write_id)
                self._busy_writes.discard(event.write_id)
                self._catalog.count(skips=1)
                self._drop_names(event.removed)
            case KvRead():
                assert self._resuming is not None
                self._resuming.take(event)
            case KvRemoved():
                self._catalog.touch()
            case KvErased():
                self._drop_names(event.removed)
                self._send(Forgotten(event.request_id, event.is_complete))
            case _:
                assert_never(event)
        self._report()

    def forget(self, request: Forget) -> None:
        """Drops what sessions have left in lanes, in memory and on the disk; ``Forgotten`` follows when it is done.

        What their jobs leave later goes at once. Such jobs should be cancelled first.
        """
        owners = set(request.sessions)
        self._forgotten |= owners
        self._clear_forgotten_lanes()
        entries, files = self._parks.forget(owners)
        for entry_id in entries:
            self._executor.host_cache.drop(entry_id)
        for file in files:
            self._forget_file(file.file_id)
        self._report()
        if self._files is None:
            self._send(Forgotten(request.request_id, is_complete=True))
        else:
            self._files.erase(request.request_id, owners)

    # ---- writing

    def _look_at_lanes(self) -> None:
        """What jobs have left is noted, or is settled at once if it is not to be kept."""
        for lane in self._parks.unsettled_lanes():
            if lane.owner in self._forgotten:
                self._clear_forgotten_lanes()
            else:
                is_kept = self._files is not None and lane.park in self._kinds
                self._leftovers.note(lane, can_have_file=is_kept and lane.length >= MIN_PARK_TOKENS)

    def _save(self, export: Export, *, is_busy: bool) -> None:
        new_bytes = self._executor.new_bytes_total
        begun = self._clock.monotonic()
        state = self._executor.export(export.lane)
        seconds = self._clock.monotonic() - begun
        if state is None:
            self._catalog.count(skips=export.has_file)
            return
        parkable = export.parkable
        self._parks.observe_save(parkable.length, seconds, self._executor.new_bytes_total - new_bytes)
        if is_busy:
            self._leftovers.took_time(seconds)
        if export.has_copy:
            self._copy(export.lane, state)
        if export.has_file and self._files is not None:
            if self._is_traced:
                begun_unix = self._clock.unix() - seconds
                self._send(KvSpan("park", begun_unix, seconds, parkable.owner or 0, parkable.length, len(state)))
            self._write(parkable, state, self._files, is_busy=is_busy)

    def _copy(self, lane: int, state: State) -> None:
        entry_id, dropped = self._copies.add(lane, len(state))
        self._executor.host_cache.put(entry_id, state)
        for needless in dropped:
            self._executor.host_cache.drop(needless)

    def _write(self, parkable: Parkable, state: State, files: KvFileThreads, *, is_busy: bool) -> None:
        self._last_write_id += 1
        write_id = self._last_write_id
        if is_busy:
            self._busy_writes.add(write_id)
        parkable = Parkable(parkable.tokens.copy(), parkable.kind, parkable.owner)
        self._parks.begin_write(write_id, parkable)
        files.write(KvWrite(write_id, parkable.kind, parkable.owner, parkable.tokens, state))

    def _is_save_of_use(self, lane: int) -> bool:
        """Whether ``_write_saved`` would write it."""
        left = self._leftovers.get(lane)
        if left is None or not left.is_file_open or self._files is None or not self._files.can_write:
            return False
        return self._leftovers.has_time() and self._parks.is_worth_parking(left.parkable, is_busy=True)

    def _write_saved(self, plan: StepPlan, execution: Execution, files: KvFileThreads) -> None:
        """A lane that was saved to host memory before its time came: its state is there for the taking."""
        for save in plan.saves:
            left = self._leftovers.get(save.lane)
            state = self._executor.host_cache.state(save.entry_id)
            if left is None or state is None or not left.is_file_open or left.parkable.length != save.length:
                continue
            if not files.can_write or not self._leftovers.has_time():
                continue
            if self._parks.is_worth_parking(left.parkable, is_busy=True):
                self._write(left.parkable, state, files, is_busy=True)
                if not self._copies.can_copy(save.lane):
                    # It was saved for the disk alone.
                    self._leftovers.took_time(execution.save_seconds / len(plan.saves))
            self._leftovers.pop(save.lane)

    def _forget_placed(self, plan: StepPlan) -> None:
        """Counts the lanes that went to other jobs before their time came."""
        for place in plan.placements:
            left = self._leftovers.pop(place.lane)
            if left is None or not left.is_file_open:
                continue
            is_replaced = place.entry_id is not None or place.keep < left.parkable.length
            if is_replaced and self._parks.is_worth_parking(left.parkable, is_busy=True):
                self._catalog.count(skips=1)

    def _written(self, event: KvWritten) -> None:
        if event.write_id in self._busy_writes:
            self._busy_writes.discard(event.write_id)
            self._leftovers.took_time(event.cpu_seconds)
        self._drop_names(event.removed)
        known = self._catalog.file_id(event.name)
        if known is not None:
            # The same tokens of the same session once more.
            self._forget_file(known)
        file_id = self._catalog.new_id(event.name)
        file, superseded = self._parks.end_write(event.write_id, file_id, event.size_bytes)
        self._parks.observe_write(file.length, event.seconds)
        self._catalog.added(file)
        self._catalog.count(parks=1)
        assert self._files is not None
        for old in superseded:
            if not self._parks.is_awaited(old.file_id):
                self._files.remove([self._catalog.name(old.file_id)])
                self._forget_file(old.file_id)
        if file.owner in self._forgotten:
            self._forget_file(file_id)

    # ---- reading

    def _opened(self, event: KvOpened) -> None:
        if event.damaged:
            self._catalog.count(damaged=event.damaged)
        if not event.is_usable:
            self._kinds = ()
        for found in event.files:
            if len(found.tokens) <= self._window_tokens:
                self._add(found)

    def _add(self, found: FoundFile) -> None:
        file_id = self._catalog.new_id(found.name)
        file = KvFile(file_id, found.tokens, found.kind, found.owner, found.size_bytes)
        # What it supersedes is left to the budget: nobody can tell any more which of two is the newer.
        self._parks.index.add(file)
        self._catalog.added(file)

    # ---- the books

    def _drop_names(self, names: Collection[str]) -> None:
        """These files are gone."""
        for name in names:
            file_id = self._catalog.file_id(name)
            if file_id is not None:
                self._forget_file(file_id)

    def _forget_file(self, file_id: int) -> None:
        if self._resuming is not None:
            self._resuming.gone(file_id)
        self._parks.file_failed(file_id)
        self._parks.index.discard(file_id)
        self._catalog.removed(file_id)

    def _clear_forgotten_lanes(self) -> None:
        for lane in self._parks.free_lanes_of(self._forgotten):
            self._leftovers.pop(lane.index)
            self._executor.clear(lane.index)
            lane.empty()

    def _report(self) -> None:
        if not self._catalog.has_changes:
            return
        changed = self._catalog.take_changes(0 if self._files is None else self._files.size_bytes)
        if changed is not None:
            self._send(changed)
