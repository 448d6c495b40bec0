"""Who leaves the queue, into which lane, and who must give one up for it. Pure; lives in the worker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.scheduling.checkpoints import Checkpoints
from superfluid.scheduling.placement import Seed, SeedChooser, Survey
from superfluid.scheduling.plan import DropEntry, PlaceJob, Preempted, SaveLane
from superfluid.scheduling.prefix import CheckpointKind, HostEntry, PrefixIndex
from superfluid.scheduling.pressure import Pressure
from superfluid.scheduling.queue import Candidate, JobQueue
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.statistics import SchedulerCounters

PATIENCE_TICKS: Final = 64
"""A job stops waiting for a leader when neither its prefill nor one ahead of it has moved for this many ticks."""
MAX_LEADERS: Final = 8
"""A job waits for no more leaders than this, one after another."""


@dataclass(slots=True)
class Moves:
    """What a plan does before its step; filled while jobs are placed."""

    save_list: list[SaveLane] = field(default_factory=list)
    drop_list: list[DropEntry] = field(default_factory=list)
    preempt_list: list[Preempted] = field(default_factory=list)
    place_list: list[PlaceJob] = field(default_factory=list)
    admitted: dict[int, Lane] = field(default_factory=dict)
    entries_by_lane: dict[int, HostEntry] = field(default_factory=dict)

    @property
    def saves(self) -> tuple[SaveLane, ...]:
        return tuple(self.save_list)

    @property
    def drops(self) -> tuple[DropEntry, ...]:
        return tuple(self.drop_list)

    @property
    def preemptions(self) -> tuple[Preempted, ...]:
        return tuple(self.preempt_list)

    @property
    def placements(self) -> tuple[PlaceJob, ...]:
        return tuple(self.place_list)


class Admission:
    """Owns the queue. Gives lanes to jobs, takes them from worse classes, has them saved before what they hold is lost.

    ``now`` is in the scheduler's ticks, whole and broken ones; ``tick`` is the number of the plan.
    """

    def __init__(
        self,
        lanes: list[Lane],
        index: PrefixIndex,
        chooser: SeedChooser,
        rules: SchedulingRules,
        counters: SchedulerCounters,
        checkpoints: Checkpoints,
        pressure: Pressure,
    ) -> None:
        self.queue = JobQueue(rules.starvation_ticks)
        self.must_wait: Callable[[Sequence], bool] = lambda _: False
        """Whether a job waits for something that is not in a lane; it is then passed over."""
        self._lanes = lanes
        self._index = index
        self._chooser = chooser
        self._rules = rules
        self._counters = counters
        self._checkpoints = checkpoints
        self._pressure = pressure
        self.is_background_held = False
        """Jobs of the last class get no lane, unless they have waited long."""
        self._held_back: set[int] = set()
        self._is_kept_waiting = False

    @property
    def is_waited_for(self) -> bool:
        """Whether everybody waits for the end of what runs: of a job that runs alone, or of all for one that is to."""
        return self._is_kept_waiting or self._is_taken_alone

    @property
    def free_lanes(self) -> int:
        return sum([lane.sequence is None for lane in self._lanes])

    @property
    def is_settled(self) -> bool:
        """Whether no job can get a lane, or lose one, until something else happens than time passing."""
        if not self.queue or self._is_taken_alone:
            return True
        return not self.free_lanes and not self.queue.has_urgent

    def admit(self, tick: int, now: float) -> Moves:
        """Changes queue, lanes and index as if the plan had succeeded."""
        moves = Moves(drop_list=[DropEntry(entry_id) for entry_id in (*self._index.tidy(), *self._pressure.relieve())])
        moves.save_list, moves.entries_by_lane, needless = self._checkpoints.take(tick)
        moves.drop_list += [DropEntry(entry_id) for entry_id in needless]
        if self._pressure.takes_background_lanes():
            self._preempt_background(moves, now)
        free = self.free_lanes
        self._is_kept_waiting = False
        if not self.queue or self._is_taken_alone or not (free or self._can_preempt(now, tick)):
            return moves
        closed: set[QosClass] = set()
        for candidate in self.queue.candidates(now, closed):
            sequence = candidate.sequence
            qos = sequence.job.qos
            if self.must_wait(sequence):
                continue
            if self._is_held_back(candidate):
                continue
            if self._is_capped(qos):
                closed.add(qos)
            elif sequence.job.is_batch_invariant:
                self._is_kept_waiting = free < len(self._lanes)
                if not self._is_kept_waiting:
                    self._give_lane(candidate, self._chooser.survey(sequence, tick), moves, tick, now)
                return moves
            elif (survey := self._survey_unless_waiting(sequence, tick)) is not None:
                if not free:
                    victim = self._victim(qos, now, tick)
                    if victim is None:
                        closed.add(qos)
                        continue
                    self._preempt(victim, moves, now)
                self._give_lane(candidate, survey, moves, tick, now)
                free = self.free_lanes
                if not free and not self._can_preempt(now, tick):
                    return moves
        return moves

    def can_admit(self, qos: QosClass, now: float) -> bool:
        """Whether a job of that class that arrives now gets a lane in the next plan, at the cost of a worse class if
        need be."""
        if self._is_taken_alone or self._is_capped(qos):
            return False
        return self.free_lanes > 0 or self._victim(qos, now) is not None

    # ---- who may run

    def _is_held_back(self, candidate: Candidate) -> bool:
        if not self.is_background_held:
            self._held_back.clear()
            return False
        is_held = candidate.effective_class >= QosClass.BACKGROUND
        if is_held and candidate.sequence.job_id not in self._held_back:
            self._held_back.add(candidate.sequence.job_id)
            self._counters.admits_deferred_total += 1
        return is_held

    @property
    def _is_taken_alone(self) -> bool:
        return any(lane.sequence is not None and lane.sequence.job.is_batch_invariant for lane in self._lanes)

    def _is_capped(self, qos: QosClass) -> bool:
        cap = self._rules.class_lanes[qos]
        if cap is None:
            return False
        return sum([lane.sequence is not None and lane.sequence.job.qos == qos for lane in self._lanes]) >= cap

    def _give_lane(self, candidate: Candidate, survey: Survey, moves: Moves, tick: int, now: float) -> None:
        """A job that got its lane by waiting keeps it for a while, whoever comes, or waiting would be of no use."""
        sequence = candidate.sequence
        if candidate.effective_class < sequence.job.qos:
            sequence.granted_class = candidate.effective_class
            sequence.granted_until = now + self._rules.starvation_ticks
        self._counters.starvation_grants_total += candidate.is_grant
        self._place(sequence, self._chooser.choose(sequence, survey), moves, tick)

    # ---- who must give way

    def _can_preempt(self, now: float, tick: int) -> bool:
        return self.queue.has_urgent and self._victim(QosClass.INTERACTIVE, now, tick) is not None

    def _victim(self, qos: QosClass, now: float, tick: int = -1) -> Lane | None:
        """The lane that a waiting job of ``qos`` may take: first those that decode, of these the worst class, of these
        the youngest job. Media cannot be had back without its encoder, so its lanes are spared."""
        if qos > QosClass.COMPLETION:
            return None
        held = [
            (lane.is_decoding, sequence.job.qos, sequence.order, lane)
            for lane in self._lanes
            if (sequence := lane.sequence) is not None
            and sequence.held_class(now) > qos
            and not sequence.job.is_batch_invariant
            and not sequence.job.images
            and lane.placed_tick != tick
        ]
        return max(held)[3] if held else None

    def _preempt(self, lane: Lane, moves: Moves, now: float) -> None:
        sequence = lane.sequence
        assert sequence is not None
        job = sequence.job
        produced = sequence.length - job.prompt_tokens
        moves.preempt_list.append(Preempted(job.job_id, lane.index, job.qos, job.session, produced))
        lane.release()
        sequence.wait_again()
        self.queue.put_back(sequence, now)
        self._counters.preemptions_total += 1

    def _preempt_background(self, moves: Moves, now: float) -> None:
        """Takes the lanes of all replies of the last class: the machine is short of memory."""
        for lane in self._lanes:
            job = None if lane.sequence is None else lane.sequence.job
            is_spared = job is None or job.qos is not QosClass.BACKGROUND or job.is_batch_invariant or bool(job.images)
            if lane.is_decoding and not is_spared:
                self._preempt(lane, moves, now)

    # ---- where it begins

    def _survey_unless_waiting(self, sequence: Sequence, tick: int) -> Survey | None:
        """What the job could begin with; ``None`` if it had better wait for another one's prefill."""
        if self._is_still_waiting(sequence, tick):
            return None
        survey = self._chooser.survey(sequence, tick)
        if survey.leader is None or not self._may_wait(sequence, survey):
            return survey
        self._wait(sequence, survey.leader, survey.coming_tokens)
        return None

    def _may_wait(self, sequence: Sequence, survey: Survey) -> bool:
        return sequence.leaders_tried < MAX_LEADERS and self._chooser.is_worth_waiting(survey)

    def _wait(self, sequence: Sequence, leader: Sequence, needed_tokens: int) -> None:
        sequence.leader = leader
        sequence.needed_tokens = needed_tokens
        sequence.leaders_tried += 1
        if not self._chooser.can_truncate:
            leader.checkpoints[needed_tokens] = CheckpointKind.SHARED

    def _is_still_waiting(self, sequence: Sequence, tick: int) -> bool:
        leader = sequence.leader
        if leader is None:
            return False
        is_there = leader.lane_index >= 0
        if is_there and self._lanes[leader.lane_index].length < sequence.needed_tokens:
            if tick - leader.progress_tick <= PATIENCE_TICKS:
                return True
            sequence.refused_leader = leader.job_id
        sequence.leader = None
        return False

    def _place(self, sequence: Sequence, seed: Seed, moves: Moves, tick: int) -> None:
        entry = seed.entry
        if seed.source is not None:
            entry = self._save(seed.source, moves, tick)
        if self._chooser.is_worth_saving(seed.lane, seed.keep if entry is None else 0):
            self._save(seed.lane, moves, tick)
        if entry is not None:
            entry.last_used_tick = tick
            entry.uses += 1
        place = PlaceJob(
            sequence.job_id,
            seed.lane.index,
            seed.keep,
            None if entry is None else entry.entry_id,
            0 if entry is None else entry.length,
        )
        moves.place_list.append(place)
        moves.admitted[sequence.job_id] = seed.lane
        self.queue.remove(sequence.job_id)
        sequence.progress_tick = tick
        sequence.leader = None
        if sequence.held_entry is not None:
            self._index.release(sequence.held_entry)
            sequence.held_entry = None
        seed.lane.place(sequence, seed.keep, tick)
        self._checkpoints.placed(seed.lane)
        sequence.warm_from = "pool" if seed.entry is None else "disk" if seed.entry.is_from_disk else "memory"

    def _save(self, lane: Lane, moves: Moves, tick: int) -> HostEntry:
        """One save serves all who follow in the same plan."""
        entry = moves.entries_by_lane.get(lane.index)
        if entry is None:
            is_transient = not self._chooser.losses.can_last(lane.length)
            entry = self._index.add(lane.held, tick, is_transient=is_transient, owner=lane.owner, adapter=lane.adapter)
            moves.entries_by_lane[lane.index] = entry
            moves.save_list.append(SaveLane(lane.index, entry.entry_id, lane.length))
            self._chooser.losses.is_saved()
        return entry
