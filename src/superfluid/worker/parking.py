"""Keeps states warm over a lost lane and a restart: has saved what jobs have left, and read what queued jobs need. On
the tick loop.

Exporting a lane stalls the ticks for some milliseconds, so one at most is exported between two of them: as soon as
nothing runs, and else within a hundredth of the time. What was exported serves both as the copy in host memory and for
the file. Everything else is done by the threads of ``kvfiles``.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
from superfluid.worker.protocol import Forget, Forgotten, FromWorker, KvSpan
from superfluid.worker.resuming import Resuming

SETTLE_SECONDS: Final = 0.15
"""A turn that is answered within this time is not saved: the next one is, and it holds all of this one."""
BUSY_SHARE: Final = 0.01
"""The part of the time that parking may take from running jobs."""
MOST_SAVED_UP_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 3.0

_logger = logging.getLogger("superfluid_daemon::scheduler")


@dataclass(slots=True)
class _Left:
    """What lies in a lane since ``since``, and whether it is still to be decided if it gets a file, or a copy."""

    parkable: Parkable
    since: float
    is_file_open: bool
    is_copy_open: bool


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
        self._catalog = KvCatalog()
        self._left: dict[int, _Left] = {}
        self._resuming = None if files is None else Resuming(files, parks, executor, self._catalog, clock=clock)
        self._forgotten: set[int] = set()
        self._last_write_id = 0
        self._busy_writes: set[int] = set()
        self._saved_up = MOST_SAVED_UP_SECONDS
        self._credited_at = clock.monotonic()

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
        if self._files is not None and plan.saves:
            self._write_saved(plan, self._files)
        self._forget_placed(plan)
        if self._resuming is not None and (plan.drops or plan.placements):
            self._resuming.after_tick(plan, execution)
        self._look_at_lanes()
        self._report()

    def restored(self, plan: StepPlan, execution: Execution) -> list[tuple[int, int, int]]:
        """Job, tokens and bytes of each state that came from the disk into a lane in the tick. Before
        ``after_tick``."""
        return [] if self._resuming is None else self._resuming.restored(plan, execution)

    def park_one(self, *, is_busy: bool) -> bool:
        """Exports the lane that has waited longest, if its time has come. ``is_busy``: jobs are running."""
        now = self._clock.monotonic()
        for index, left in sorted(self._left.items(), key=lambda item: item[1].since):
            if now - left.since < SETTLE_SECONDS or (is_busy and not self._has_time(now)):
                return False
            has_file, has_copy = self._wanted(index, left, is_busy=is_busy)
            if not (left.is_file_open or left.is_copy_open):
                self._set_aside(index)
            if has_file or has_copy:
                self._save(index, left.parkable, is_busy=is_busy, has_file=has_file, has_copy=has_copy)
                return True
        return False

    def seconds_to_wait(self) -> float | None:
        """How long the loop may sleep when it has nothing to do; ``None``: until a message comes."""
        now = self._clock.monotonic()
        times = [] if self._resuming is None else [deadline - now for deadline in self._resuming.deadlines]
        if self._left:
            settled = min(left.since for left in self._left.values()) + SETTLE_SECONDS - now
            times.append(max(settled, RETRY_SECONDS) if self._is_waiting_for_writer(now) else settled)
        return max(0.001, min(times)) if times else None

    def close(self) -> None:
        """Parks what is left and waits for the writes, for at most three seconds."""
        files = self._files
        if files is None:
            return
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        for left in self._left.values():
            left.since -= SETTLE_SECONDS
            left.is_copy_open = False
        while self._left and (seconds := deadline - self._clock.monotonic()) > 0:
            files.wait_room(seconds)
            if not self.park_one(is_busy=False):
                break
        files.close(max(0.0, deadline - self._clock.monotonic()))

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong. For tests, between ticks."""
        self._catalog.check_integrity()
        assert len(self._catalog) == len(self._parks.index)
        for index, left in self._left.items():
            lane = self._parks.lane(index)
            assert not lane.is_settled
            assert lane.length == left.parkable.length

    def emptied(self, lanes: Collection[int]) -> None:
        """These lanes have been cleared, and no job was on them."""
        for lane in lanes:
            self._left.pop(lane, None)

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
            self._catalog.removed(file.file_id)
        self._report()
        if self._files is None:
            self._send(Forgotten(request.request_id, is_complete=True))
        else:
            self._files.erase(request.request_id, owners)

    # ---- writing

    def _look_at_lanes(self) -> None:
        """What jobs have left is noted, or set aside at once if it is not to be kept."""
        for lane in self._parks.unsettled_lanes():
            if lane.owner in self._forgotten:
                self._clear_forgotten_lanes()
                continue
            can_have_file = self._files is not None and lane.park in self._kinds and lane.length >= MIN_PARK_TOKENS
            can_have_copy = self._copies.can_copy(lane.index)
            if not (can_have_file or can_have_copy):
                lane.is_settled = True
            elif lane.index not in self._left:
                parkable = Parkable(lane.held, lane.park, lane.owner)
                self._left[lane.index] = _Left(parkable, self._clock.monotonic(), can_have_file, can_have_copy)

    def _wanted(self, index: int, left: _Left, *, is_busy: bool) -> tuple[bool, bool]:
        """Whether the lane is to be exported now for a file, and for a copy. What is not worth it while nothing runs
        will not be later, unless it is the writing thread that has no time."""
        can_write = self._files is not None and self._files.can_write
        is_worth_a_file = left.is_file_open and self._parks.is_worth_parking(left.parkable, is_busy=is_busy)
        has_file = is_worth_a_file and can_write
        has_copy = left.is_copy_open and self._copies.is_worth_copying(index)
        left.is_file_open &= not has_file and (is_busy or is_worth_a_file)
        left.is_copy_open &= not has_copy and is_busy
        return has_file, has_copy

    def _has_time(self, now: float) -> bool:
        """Whether parking has taken less than its share from running jobs."""
        self._saved_up = min(MOST_SAVED_UP_SECONDS, self._saved_up + BUSY_SHARE * (now - self._credited_at))
        self._credited_at = now
        return self._saved_up > 0.0

    def _set_aside(self, index: int) -> None:
        del self._left[index]
        self._parks.lane(index).is_settled = True

    def _save(self, index: int, parkable: Parkable, *, is_busy: bool, has_file: bool, has_copy: bool) -> None:
        begun = self._clock.monotonic()
        state = self._executor.export(index)
        seconds = self._clock.monotonic() - begun
        if state is None:
            self._catalog.count(skips=has_file)
            return
        self._parks.observe_save(parkable.length, seconds)
        if is_busy:
            self._saved_up -= seconds
        if has_copy:
            self._copy(index, state)
        if has_file and self._files is not None:
            if self._is_traced:
                begun_unix = self._clock.unix() - seconds
                self._send(KvSpan("park", begun_unix, seconds, parkable.owner or 0, parkable.length, len(state)))
            self._write(parkable, state, self._files, is_busy=is_busy)

    def _copy(self, index: int, state: State) -> None:
        entry_id, dropped = self._copies.add(index, len(state))
        self._executor.host_cache.put(entry_id, state)
        for needless in dropped:
            self._executor.host_cache.drop(needless)

    def _is_waiting_for_writer(self, now: float) -> bool:
        """Whether all that has settled waits for room to be written."""
        settled = [left for left in self._left.values() if now - left.since >= SETTLE_SECONDS]
        can_write = self._files is not None and self._files.can_write
        return bool(settled) and not can_write and not any(left.is_copy_open for left in settled)

    def _write(self, parkable: Parkable, state: State, files: KvFileThreads, *, is_busy: bool) -> None:
        self._last_write_id += 1
        write_id = self._last_write_id
        if is_busy:
            self._busy_writes.add(write_id)
        parkable = Parkable(parkable.tokens.copy(), parkable.kind, parkable.owner)
        self._parks.begin_write(write_id, parkable)
        files.write(KvWrite(write_id, parkable.kind, parkable.owner, parkable.tokens, state))

    def _write_saved(self, plan: StepPlan, files: KvFileThreads) -> None:
        """A lane that was saved to host memory before its time came: its state is there for the taking."""
        for save in plan.saves:
            left = self._left.get(save.lane)
            state = self._executor.host_cache.state(save.entry_id)
            if left is None or state is None or not left.is_file_open or left.parkable.length != save.length:
                continue
            if not files.can_write or not self._has_time(self._clock.monotonic()):
                continue
            if self._parks.is_worth_parking(left.parkable, is_busy=True):
                self._write(left.parkable, state, files, is_busy=True)
            del self._left[save.lane]

    def _forget_placed(self, plan: StepPlan) -> None:
        """Counts the lanes that went to other jobs before their time came."""
        for place in plan.placements:
            left = self._left.pop(place.lane, None)
            is_replaced = (
                left is not None
                and left.is_file_open
                and (place.entry_id is not None or place.keep < left.parkable.length)
            )
            if left is not None and is_replaced and self._parks.is_worth_parking(left.parkable, is_busy=True):
                self._catalog.count(skips=1)

    def _written(self, event: KvWritten) -> None:
        if event.write_id in self._busy_writes:
            self._busy_writes.discard(event.write_id)
            self._saved_up -= event.cpu_seconds
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
        self._parks.file_failed(file_id)
        self._parks.index.discard(file_id)
        self._catalog.removed(file_id)

    def _clear_forgotten_lanes(self) -> None:
        for lane in self._parks.free_lanes_of(self._forgotten):
            self._left.pop(lane.index, None)
            self._executor.clear(lane.index)
            lane.empty()

    def _report(self) -> None:
        changed = self._catalog.take_changes(0 if self._files is None else self._files.size_bytes)
        if changed is not None:
            self._send(changed)
