"""The queue and who leaves it: first in, first out among those that need not wait for another one's prefill. Pure."""

from dataclasses import dataclass, field
from typing import Final

from superfluid.domain.request import QosClass
from superfluid.scheduling.placement import Seed, SeedChooser, Survey
from superfluid.scheduling.plan import DropEntry, PlaceJob, SaveLane
from superfluid.scheduling.prefix import HostEntry, PrefixIndex
from superfluid.scheduling.sequence import Lane, Sequence

PATIENCE_TICKS: Final = 64
"""A job stops waiting for a leader when neither its prefill nor one ahead of it has moved for this many ticks."""
MAX_LEADERS: Final = 8
"""A job waits for no more leaders than this, one after another."""


@dataclass(slots=True)
class Moves:
    """What a plan does before its step; filled while jobs are placed."""

    save_list: list[SaveLane] = field(default_factory=list)
    drop_list: list[DropEntry] = field(default_factory=list)
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
    def placements(self) -> tuple[PlaceJob, ...]:
        return tuple(self.place_list)


class Admission:
    """Owns the queue. Places jobs into lanes, and has lanes saved before what they hold is lost."""

    def __init__(self, lanes: list[Lane], index: PrefixIndex, chooser: SeedChooser) -> None:
        self.queue: dict[int, Sequence] = {}
        self._lanes = lanes
        self._index = index
        self._chooser = chooser

    @property
    def free_lanes(self) -> int:
        return sum([lane.sequence is None for lane in self._lanes])

    def queue_depth(self) -> tuple[int, int, int, int]:
        depth = [0] * len(QosClass)
        for sequence in self.queue.values():
            depth[sequence.job.qos] += 1
        return (depth[0], depth[1], depth[2], depth[3])

    def admit(self, tick: int) -> Moves:
        """Gives free lanes to the jobs that can run. Changes queue, lanes and index as if the plan had succeeded."""
        moves = Moves(drop_list=[DropEntry(entry_id) for entry_id in self._index.tidy()])
        if not self.queue:
            return moves
        free = self.free_lanes
        for sequence in list(self.queue.values()) if free else ():
            if self._is_still_waiting(sequence, tick):
                continue
            survey = self._chooser.survey(sequence, tick)
            if survey.leader is not None and self._may_wait(sequence, survey):
                self._wait(sequence, survey.leader, survey.coming_tokens)
                continue
            self._place(sequence, self._chooser.choose(sequence, survey), moves, tick)
            free -= 1
            if not free:
                break
        return moves

    def _may_wait(self, sequence: Sequence, survey: Survey) -> bool:
        return sequence.leaders_tried < MAX_LEADERS and self._chooser.is_worth_waiting(survey)

    def _wait(self, sequence: Sequence, leader: Sequence, needed_tokens: int) -> None:
        sequence.leader = leader
        sequence.needed_tokens = needed_tokens
        sequence.leaders_tried += 1

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
        place = PlaceJob(
            sequence.job_id,
            seed.lane.index,
            seed.keep,
            None if entry is None else entry.entry_id,
            0 if entry is None else entry.length,
        )
        moves.place_list.append(place)
        moves.admitted[sequence.job_id] = seed.lane
        del self.queue[sequence.job_id]
        sequence.progress_tick = tick
        sequence.leader = None
        seed.lane.place(sequence, seed.keep, tick)

    def _save(self, lane: Lane, moves: Moves, tick: int) -> HostEntry:
        """One save serves all who follow in the same plan."""
        entry = moves.entries_by_lane.get(lane.index)
        if entry is None:
            entry = self._index.add(lane.held, tick, is_transient=not self._chooser.can_last(lane.length))
            moves.entries_by_lane[lane.index] = entry
            moves.save_list.append(SaveLane(lane.index, entry.entry_id, lane.length))
        return entry
