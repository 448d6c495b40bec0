"""The scheduler: takes jobs, plans each tick, learns from its outcome. Pure: no clock, no I/O; in the worker.

``plan`` and ``complete`` alternate; ``submit`` and ``cancel`` come between a ``complete`` and the next ``plan``.
"""

from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from superfluid.domain.job import Job
from superfluid.domain.memory import DEFAULT_MEMORY_RULES, MemoryRules
from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import DEFAULT_RULES, SchedulingRules
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.domain.statistics import blocks
from superfluid.errors import ContextLengthExceededError, InvalidValueError, QueueFullError
from superfluid.scheduling.admission import Admission
from superfluid.scheduling.checkpoints import Checkpoints
from superfluid.scheduling.copies import Copies
from superfluid.scheduling.holdings import Holdings
from superfluid.scheduling.images import require_image_runs
from superfluid.scheduling.parks import Parks
from superfluid.scheduling.pins import Pins
from superfluid.scheduling.placement import PlacementRules, SeedChooser
from superfluid.scheduling.plan import Admitted, Chunk, Retired, StepOutcome, StepPlan, StepResult
from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.pressure import Pressure, PressureLevel
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.repeats import Repeats
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.speculation import Speculation
from superfluid.scheduling.statistics import LaneView, SchedulerCounters, SchedulerStatistics
from superfluid.scheduling.token_tree import Tokens
from superfluid.scheduling.work import WorkChooser


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """``micro_batch_tokens``: what the engine computes at a time of a longer chunk; 0 if it does not tell.

    ``replays_replies``: a reply's tokens from before a lost worker are fed one a tick, not in chunks, so that they
    come out bit for bit as they were; worth it only with an engine that is exact (flash attention off)."""

    lanes: int
    window_tokens: int
    vocabulary_tokens: int
    max_queue: int = 512
    host_cache_bytes: int = 0
    can_truncate: bool = True
    replays_replies: bool = False
    rules: SchedulingRules = DEFAULT_RULES
    memory: MemoryRules = DEFAULT_MEMORY_RULES
    speculation: SpeculationRules = NO_SPECULATION
    micro_batch_tokens: int = 0


class Scheduler:
    """Decides from token ids, counts and measured durations alone."""

    def __init__(self, settings: SchedulerSettings, rates: Rates | None = None) -> None:
        self._settings = settings
        self._rates = rates or Rates()
        self._lanes = [Lane(index) for index in range(settings.lanes)]
        self._index = PrefixIndex(limit_bytes=settings.host_cache_bytes, is_nesting=settings.can_truncate)
        rules = PlacementRules(settings.host_cache_bytes, settings.can_truncate)
        chooser = SeedChooser(self._lanes, self._index, self._rates, rules)
        self._counters = SchedulerCounters()
        checkpoints = Checkpoints(self._lanes, self._index, chooser, can_truncate=settings.can_truncate)
        self._pressure = Pressure(
            self._lanes,
            self._index,
            self._rates,
            settings.memory,
            self._counters,
            host_bytes=settings.host_cache_bytes,
            window_tokens=settings.window_tokens,
        )
        self.pins = Pins(
            self._lanes,
            self._index,
            self._rates,
            self._counters,
            budget_bytes=settings.host_cache_bytes * settings.memory.pin_budget_percent // 100,
        )
        chooser.losses.pinned_lanes = lambda: self.pins.lanes
        chooser.losses.has_room = self._pressure.has_room
        self._admission = Admission(
            self._lanes, self._index, chooser, settings.rules, self._counters, checkpoints, self._pressure
        )
        self.parks = Parks(
            self._lanes,
            self._admission.queue,
            self._index,
            chooser,
            self._rates,
            can_truncate=settings.can_truncate,
        )
        self._admission.must_wait = self.parks.must_wait
        self.copies = Copies(
            self._lanes, self._index, chooser, self._rates, self._pressure, self._counters, self.pins.changed
        )
        self._index.is_resident = self.copies.is_resident
        self.holdings = Holdings(self._lanes, self._index)
        self._speculation = Speculation(
            settings.speculation,
            self._lanes,
            self._counters,
            can_truncate=settings.can_truncate,
            window_tokens=settings.window_tokens,
            budget_tokens=settings.rules.decode_budget_tokens,
        )
        # An exact engine is exact only if a prompt is read in chunks. What guesses cost is told from plain steps, which
        # must not have rows now and then that are not the replies'.
        self._work = WorkChooser(
            self._lanes,
            self._rates,
            settings.rules,
            self._counters,
            can_cut_chunks=settings.can_truncate,
            fills_gaps=settings.can_truncate and not settings.replays_replies and not self._speculation.is_on,
            micro_batch_tokens=settings.micro_batch_tokens,
        )
        self._repeats = Repeats(self._lanes, self._index, self._admission, self._pressure)
        self._running: dict[int, Lane] = {}
        self._tick = 0
        self._now = 0.0
        self._next_order = 0

    @property
    def rates(self) -> Rates:
        """What has been learned of the engine's pace, for reading."""
        return self._rates

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._running and not self._admission.queue

    @property
    def has_host_entries(self) -> bool:
        """Whether anything is kept in host memory."""
        return len(self._index) > 0

    @property
    def is_running(self) -> bool:
        """Some job has a lane."""
        return bool(self._running)

    def submit(self, job: Job) -> Retired | None:
        """Queues the job; one that has nothing to generate is over at once.

        Raises QueueFullError, ContextLengthExceededError, or InvalidValueError for token ids that are none.
        """
        assert job.job_id not in self._running, "job ids are unique"
        assert job.job_id not in self._admission.queue, "job ids are unique"
        self._repeats.end()
        tokens = self._checked_tokens(job)
        window = self._settings.window_tokens
        has_reply = len(tokens) > job.prompt_tokens
        if job.max_tokens <= 0 or (has_reply and len(tokens) >= window):
            return Retired(job.job_id, Finish.LENGTH)
        if len(tokens) >= window:
            raise ContextLengthExceededError(
                f"the prompt has {len(tokens)} tokens; the window leaves room for {window - 1}"
            )
        if len(self._admission.queue) - self._admission.free_lanes >= self._settings.max_queue:
            raise QueueFullError(f"{self._settings.max_queue} requests are waiting already")
        replays = self._settings.replays_replies
        sequence = Sequence(job, tokens, order=self._next_order, window_tokens=window, is_replayed=replays)
        self._next_order += 1
        self._admission.queue.add(sequence, self._now)
        return None

    def cancel(self, job_id: int) -> Retired | None:
        """Takes the job out of the queue or off its lane, which is free for the next plan. ``None`` if it is gone."""
        self._repeats.end()
        queued = self._admission.queue.find(job_id)
        if queued is not None:
            self._admission.queue.remove(job_id)
            self.parks.let_go(queued)
        else:
            lane = self._running.pop(job_id, None)
            if lane is None:
                return None
            self.pins.left(lane)
            lane.release()
        return Retired(job_id, Finish.CANCELLED)

    def has_adapter(self, adapter: int) -> bool:
        """Whether a job with that adapter runs or waits."""
        running = [self.sequence(job_id) for job_id in self._running]
        return any(sequence.job.adapter == adapter for sequence in (*running, *self._admission.queue))

    def forget_adapter(self, adapter: int) -> tuple[list[int], list[int]]:
        """Gives up what was computed with it: ids of host entries, and of lanes. No job may have it any more."""
        self._repeats.end()
        entries = [entry.entry_id for entry in self._index if entry.adapter == adapter]
        for entry_id in entries:
            self._index.discard(entry_id)
        lanes = [lane for lane in self._lanes if lane.adapter == adapter and lane.length]
        for lane in lanes:
            assert lane.sequence is None, "a job has the adapter"
            lane.empty()
        return entries, [lane.index for lane in lanes]

    def set_background_rate(self, divisor: int) -> None:
        """Agent and background jobs decode at one ``divisor``-th of their rate. 0 counts as 1."""
        self._repeats.end()
        self._work.background_divisor = max(1, divisor)

    def memory_at_hand(self, size_bytes: int) -> None:
        """What the engine has for the next state without taking new memory; before each plan."""
        self._rates.ready_bytes = size_bytes

    def system_pressure(self, level: PressureLevel) -> None:
        """What the operating system says of its memory; the next plan acts on it."""
        self._repeats.end()
        self._pressure.signal(level)

    def hold_background(self, *, is_held: bool) -> None:
        """While it holds, jobs of the last class get no lane unless they have waited long."""
        self._repeats.end()
        self._admission.is_background_held = is_held

    def plan(self, now_unix: float = 0.0) -> StepPlan:
        """The next tick. Empty only if the scheduler is idle, asks for a pause, or waits: for the disk, for memory.

        ``now_unix`` is what the deadlines of pins are held against.
        """
        plan = self._repeats.take()
        if plan is None:
            return self.plan_anew(now_unix)
        self._tick += 1
        self.copies.tick = self._tick
        self._work.repeat()
        return plan

    def plan_anew(self, now_unix: float = 0.0) -> StepPlan:
        """As ``plan``, whatever the last one was."""
        self._repeats.end()
        self._tick += 1
        self.copies.tick = self._tick
        moves = self._admission.admit(self._tick, self._now)
        for preempted in moves.preemptions:
            del self._running[preempted.job_id]
        self._running.update(moves.admitted)
        for lane in moves.admitted.values():
            self.pins.placed(lane, now_unix)
        self._work.is_waited_for = self._admission.is_waited_for
        work = self._work.choose(self._now)
        plan = StepPlan(
            moves.saves,
            moves.drops,
            moves.placements,
            self._speculation.with_drafts(work.decodes),
            None if work.chunk is None else self._with_yields(work.chunk),
            work.chunk_budget_tokens,
            moves.preemptions,
            work.pause_seconds,
            self._pressure.look,
            work.fillers,
            is_system_short=self._pressure.is_system_short,
        )
        if self._work.is_steady and not self._speculation.is_on:
            self._repeats.note(plan)
        return plan

    def complete(self, plan: StepPlan, outcome: StepOutcome) -> StepResult:
        """Takes in what became of ``plan``; jobs that are over have left their lanes."""
        self._now += (outcome.engine_seconds + plan.pause_seconds) / self._settings.rules.tick_target_seconds
        admitted: tuple[Admitted, ...] = ()
        if plan.has_moves or outcome.cold_lanes:
            self._complete_transfers(plan, outcome)
            admitted = tuple([self._admitted(placement.job_id) for placement in plan.placements])
        self._complete_chunk(plan, outcome)
        for job_id in outcome.replayed:
            lane = self._running[job_id]
            self._counters.prefill_tokens_total += lane.is_prefilling
            lane.length += 1
        self._counters.decode_tokens_total += len(outcome.drawn)
        if plan.decodes and not outcome.faulted and not outcome.is_decode_cut:
            if outcome.decode_seconds > 0.0 and not outcome.drafted:
                self._rates.observe_decode(len(plan.rows), outcome.decode_seconds)
            self._speculation.completed(plan, outcome)
        self._counters.ticks_total += not plan.is_empty
        retired, first = self._take_drawn(plan, outcome)
        for job_id in outcome.faulted:
            lane = self._running.pop(job_id)
            lane.release()
            lane.empty()
            retired.append(Retired(job_id, Finish.ERROR))
        if plan.has_moves or retired:
            self.pins.changed()
        if retired or outcome.cold_lanes:
            self._repeats.end()
        self.pins.settle()
        return StepResult(admitted, tuple(retired), first)

    def sequence(self, job_id: int) -> Sequence:
        """A running job, for reading. Raises KeyError."""
        sequence = self._running[job_id].sequence
        assert sequence is not None
        return sequence

    def lane_lengths(self) -> list[int]:
        """Tokens that each lane's KV holds, by lane."""
        return [lane.length for lane in self._lanes]

    def lane_views(self) -> list[LaneView]:
        """Every lane, for monitors."""
        return [_lane_view(lane) for lane in self._lanes]

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            queue_depth=self._admission.queue.depth(),
            lanes_active=len(self._running),
            lanes_prefilling=sum([lane.is_prefilling for lane in self._running.values()]),
            pool_blocks_used=sum([blocks(lane.length) for lane in self._lanes]),
            pool_blocks_total=len(self._lanes) * blocks(self._settings.window_tokens),
            host_cache_bytes=self._index.size_bytes,
            host_cache_entries=len(self._index),
            counters=copy(self._counters),
            pins_held=self.pins.held,
            pinned_bytes=self.pins.held_bytes,
            memory_used_bytes=self._pressure.used_bytes,
            memory_total_bytes=self._pressure.total_bytes,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong. For tests, between ``complete`` and ``plan``."""
        self._index.check_integrity()
        assert not any(job_id in self._admission.queue for job_id in self._running)
        self.parks.check_integrity()
        self.pins.check_integrity()
        assert [lane for lane in self._lanes if lane.sequence is not None] == sorted(
            self._running.values(), key=lambda lane: lane.index
        )
        for job_id, lane in self._running.items():
            sequence = lane.sequence
            assert sequence is not None
            assert sequence.job_id == job_id
            assert lane.tokens is sequence.tokens
            assert sequence.lane_index == lane.index
            assert lane.decode is not None
            assert (lane.decode.job_id, lane.decode.lane) == (job_id, lane.index)
            assert lane.length < sequence.length <= self._settings.window_tokens
            assert sequence.drawn_tokens < sequence.job.max_tokens
        assert all(0 <= lane.length <= len(lane.tokens) for lane in self._lanes)

    def _checked_tokens(self, job: Job) -> Tokens:
        tokens: Tokens = np.frombuffer(job.tokens, np.dtype("<i4"))
        if not len(tokens) or not 0 < job.prompt_tokens <= len(tokens):
            raise InvalidValueError("there is no token to begin with")
        text = tokens
        if job.images:
            require_image_runs(job.images, job.prompt_tokens)
            text = np.delete(tokens, np.concatenate([np.arange(run.position, run.end) for run in job.images]))
        if len(text) and (text.min() < 0 or text.max() >= self._settings.vocabulary_tokens):
            raise InvalidValueError(f"token ids must be between 0 and {self._settings.vocabulary_tokens - 1}")
        return tokens

    def _complete_transfers(self, plan: StepPlan, outcome: StepOutcome) -> None:
        for entry_id, size_bytes in outcome.entry_bytes.items():
            self._index.record_size(entry_id, size_bytes)
        for entry_id in outcome.lost_entries:
            self._index.discard(entry_id)
        for save in plan.saves:
            if save.entry_id in outcome.entry_bytes:
                self._rates.observe_entry(save.length, outcome.entry_bytes[save.entry_id])
        self._counters.host_saves_total += len(outcome.entry_bytes)
        saved_tokens = sum(save.length for save in plan.saves)
        if saved_tokens and outcome.save_seconds > 0.0:
            self._rates.observe_save(saved_tokens, outcome.save_seconds, outcome.new_bytes)
        restored = [place for place in plan.placements if place.entry_id is not None]
        self._counters.host_restores_total += sum(place.lane not in outcome.cold_lanes for place in restored)
        if restored and outcome.restore_seconds > 0.0:
            self._rates.observe_restore(sum(place.entry_length for place in restored), outcome.restore_seconds)
        self._counters.admits_deferred_total += len(outcome.cold_lanes)
        for index in outcome.cold_lanes:
            lane = self._lanes[index]
            lane.empty()
            if lane.sequence is not None:
                lane.sequence.begin_at(0)

    def _admitted(self, job_id: int) -> Admitted:
        sequence = self.sequence(job_id)
        if not sequence.job.is_resubmission:
            self._counters.admissions_total += 1
            self._counters.warm_prefix_tokens_total += sequence.warm_tokens
            self._counters.cold_admissions_total += sequence.warm_tokens == 0
        return Admitted(job_id, sequence.warm_tokens)

    def _complete_chunk(self, plan: StepPlan, outcome: StepOutcome) -> None:
        if plan.chunk is None:
            return
        self._work.completed_chunk(plan.chunk, outcome.chunk_seconds, is_cut=outcome.is_chunk_cut)
        if not outcome.chunk_completed:
            return
        lane = self._running[plan.chunk.job_id]
        lane.length += outcome.chunk_completed
        self._counters.prefill_tokens_total += outcome.chunk_completed
        # It was the first in line: nobody else's prompt stands still without a reason.
        for other in self._running.values():
            if other.sequence is not None:
                other.sequence.progress_tick = self._tick
        is_telling = not (plan.chunk.is_image or outcome.is_chunk_cut)
        if outcome.chunk_seconds > 0.0 and is_telling:
            self._rates.observe_prefill(outcome.chunk_completed, outcome.chunk_seconds)

    def _take_drawn(self, plan: StepPlan, outcome: StepOutcome) -> tuple[list[Retired], tuple[int, ...]]:
        retired: list[Retired] = []
        first: list[int] = []
        chunk_job = plan.chunk.job_id if plan.chunk is not None else None
        for drawn in outcome.drawn:
            lane = self._running[drawn.job_id]
            sequence = lane.sequence
            assert sequence is not None
            if drawn.job_id != chunk_job:
                lane.length += 1
            sequence.append(drawn.token)
            if sequence.is_first_token:
                first.append(drawn.job_id)
            finish = self._finish(sequence, is_end=drawn.is_end)
            if finish is not Finish.NONE:
                del self._running[drawn.job_id]
                self.pins.left(lane)
                lane.release()
                retired.append(Retired(drawn.job_id, finish))
        return retired, tuple(first)

    def _with_yields(self, chunk: Chunk) -> Chunk:
        """The chunk with what is worth cutting it short for: a better class that would get a lane, and the next chunk.
        One that was cut is then carried through, or a stream of arrivals would let nothing be read; so is one that has
        had to wait for its turn."""
        sequence = self.sequence(chunk.job_id)
        has_waited = sequence.passed_ticks >= self._settings.rules.starvation_ticks
        can_yield = self._settings.can_truncate and not sequence.is_cut_short and not has_waited
        urgent = (QosClass.INTERACTIVE, QosClass.COMPLETION) if can_yield else ()
        held_class = sequence.held_class(self._now)
        yields_to = tuple([qos for qos in urgent if qos < held_class and self._admission.can_admit(qos, self._now)])
        return replace(
            chunk, yields_to=yields_to, expected_seconds=chunk.length * self._rates.prefill_seconds_per_token
        )

    def _finish(self, sequence: Sequence, *, is_end: bool) -> Finish:
        if is_end:
            return Finish.END_OF_TURN
        is_full = sequence.length >= self._settings.window_tokens
        return Finish.LENGTH if is_full or sequence.drawn_tokens >= sequence.job.max_tokens else Finish.NONE


def _lane_view(lane: Lane) -> LaneView:
    sequence = lane.sequence
    if sequence is None:
        return LaneView(lane.index, 0, False, 0, lane.length, 0, 0, 0)
    job = sequence.job
    return LaneView(
        lane.index,
        job.job_id,
        lane.is_prefilling,
        job.qos,
        lane.length,
        sequence.length,
        job.prompt_tokens,
        sequence.warm_tokens,
        sequence.warm_from if sequence.warm_tokens else "",
    )
