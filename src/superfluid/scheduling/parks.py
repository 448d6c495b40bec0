"""What the disk is good for: which lanes are worth a file, and for which file a queued job had better wait. Pure."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from superfluid.domain.job import ParkKind
from superfluid.scheduling.kv_index import KvFile, KvIndex
from superfluid.scheduling.losses import MIN_MATCH_TOKENS
from superfluid.scheduling.placement import SeedChooser
from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import Lane, Sequence
from superfluid.scheduling.token_tree import Tokens, common_prefix

MIN_PARK_TOKENS: Final = 256
"""Fewer tokens are not worth a file."""
WANTED_CHANCE: Final = 0.25
"""How likely it is taken to be that a state on the disk is wanted again and is nowhere else."""
CHEAP_SECONDS: Final = 0.25
"""A file that takes less is written whatever it is worth, if nobody waits for the engine."""
MAX_READS: Final = 4
"""Files that are being read, or are in memory until their job has a lane."""

_BETWEEN_TICKS: Final = -2
"""No lane was given away in this tick, so that all can be looked at."""


@dataclass(frozen=True, slots=True)
class Parkable:
    """What a job has left in a lane, or what was saved of that: ``length`` tokens that are on no disk yet."""

    tokens: Tokens
    kind: ParkKind
    owner: int | None

    @property
    def length(self) -> int:
        return len(self.tokens)


class Parks:
    """Reads lanes, queue and host index; of these it changes what jobs wait for, and adds the entries it was given."""

    def __init__(
        self,
        lanes: list[Lane],
        queue: Iterable[Sequence],
        host: PrefixIndex,
        chooser: SeedChooser,
        rates: Rates,
        *,
        can_truncate: bool,
    ) -> None:
        self._lanes = lanes
        self._queue = queue
        self._host = host
        self._chooser = chooser
        self._rates = rates
        self.can_truncate = can_truncate
        self.index = KvIndex(is_nesting=can_truncate)
        chooser.losses.covered_on_disk = self.index.covered_tokens
        self._coming: dict[int, Parkable] = {}
        self._waiting: dict[int, list[Sequence]] = {}
        self._reading: set[int] = set()

    # ---- parking

    @property
    def lanes(self) -> Collection[Lane]:
        return self._lanes

    def lane(self, index: int) -> Lane:
        return self._lanes[index]

    def unsettled_lanes(self) -> list[Lane]:
        """Free lanes with something that a job has left and that was not saved, nor judged unworthy, since."""
        return [lane for lane in self._lanes if lane.sequence is None and not lane.is_settled]

    def is_worth_parking(self, left: Parkable, *, is_busy: bool) -> bool:
        """Whether a file of it is worth its price, which is higher while others need the engine."""
        fresh = left.length - self._covered_tokens(left.tokens)
        if left.kind is ParkKind.NONE or left.length < MIN_PARK_TOKENS or fresh < MIN_MATCH_TOKENS:
            return False
        price = self._rates.save_seconds(left.length) + left.length * self._rates.write_seconds_per_token
        value = WANTED_CHANCE * fresh * self._rates.prefill_seconds_per_token
        return value > price or (not is_busy and price < CHEAP_SECONDS)

    def begin_write(self, write_id: int, left: Parkable) -> None:
        """Counts as covered from now on."""
        self._coming[write_id] = left

    def end_write(self, write_id: int, file_id: int, size_bytes: int) -> tuple[KvFile, list[KvFile]]:
        """The new file, and those that it makes needless, which are still there."""
        left = self._coming.pop(write_id)
        file = KvFile(file_id, left.tokens, left.kind, left.owner, size_bytes)
        return file, self.index.add(file)

    def observe_save(self, tokens: int, seconds: float, new_bytes: int = 0) -> None:
        """As ``Rates.observe_save``."""
        self._rates.observe_save(tokens, seconds, new_bytes)

    def observe_write(self, tokens: int, seconds: float) -> None:
        self._rates.observe_write(tokens, seconds)

    def abandon_write(self, write_id: int) -> None:
        self._coming.pop(write_id, None)

    def use_saves(self, is_wanted: Callable[[int], bool]) -> None:
        """``is_wanted`` tells whether a lane's state would be written if the lane were saved for somebody else now."""
        self._chooser.losses.is_wanted_on_disk = is_wanted

    # ---- resuming

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a queued job had better wait for a file, and others go on. Looks for one once."""
        if not sequence.has_looked_on_disk and len(self.index) and not sequence.job.adapter:
            sequence.has_looked_on_disk = True
            file = self._best_file(sequence)
            if file is not None:
                sequence.awaited_file = file.file_id
                self._waiting.setdefault(file.file_id, []).append(sequence)
        return sequence.awaited_file is not None

    def wanted_reads(self) -> list[KvFile]:
        """The files that are to be read now: for jobs that wait already, and for those that are next."""
        if len(self.index):
            for sequence in islice(self._queue, len(self._lanes)):
                self.must_wait(sequence)
        if not self._waiting:
            return []
        room = MAX_READS - len(self._reading) - sum([sequence.held_entry is not None for sequence in self._queue])
        unread = [file_id for file_id in self._waiting if file_id not in self._reading][: max(0, room)]
        self._reading.update(unread)
        return [self.index.file(file_id) for file_id in unread]

    def file_came(self, file_id: int, state_bytes: int, seconds: float) -> int | None:
        """The file's state is in memory, after ``seconds``. The id of the host entry it is to be kept under for the
        jobs that waited; ``None`` if none does any more."""
        file = self.index.file(file_id)
        self._rates.observe_read(file.length, seconds)
        waiting = self._stop_waiting(file.file_id)
        if not waiting:
            return None
        entry = self._host.add(file.tokens, 0, is_transient=True, owner=file.owner)
        entry.is_from_disk = True
        self._host.record_size(entry.entry_id, state_bytes)
        for sequence in waiting:
            sequence.held_entry = entry.entry_id
            self._host.hold(entry.entry_id)
        return entry.entry_id

    def file_failed(self, file_id: int) -> None:
        """Whoever waited goes on without."""
        self._stop_waiting(file_id)

    def is_awaited(self, file_id: int) -> bool:
        return file_id in self._waiting

    def let_go(self, sequence: Sequence) -> None:
        """The job has its lane, or has left the queue."""
        file_id = sequence.awaited_file
        if file_id is not None:
            sequence.awaited_file = None
            self._waiting[file_id].remove(sequence)
            if not self._waiting[file_id] and file_id not in self._reading:
                del self._waiting[file_id]
        if sequence.held_entry is not None:
            self._host.release(sequence.held_entry)
            sequence.held_entry = None

    # ---- erasing

    def free_lanes_of(self, owners: Collection[int]) -> list[Lane]:
        """Free lanes in which these sessions have left something."""
        return [lane for lane in self._lanes if lane.sequence is None and lane.length and lane.owner in owners]

    def forget(self, owners: Collection[int]) -> tuple[list[int], list[KvFile]]:
        """Drops the host entries and the files that hold what these sessions have left; nobody waits for them any more.

        What belongs to other sessions stays, however much of it is alike: those tokens are theirs as well.
        """
        entries = [entry.entry_id for entry in self._host if entry.owner in owners]
        for entry_id in entries:
            self._host.discard(entry_id)
        files = [file for file in self.index if file.owner in owners]
        for file in files:
            self.index.discard(file.file_id)
            self._stop_waiting(file.file_id)
        return entries, files

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong. For tests, between ticks."""
        self.index.check_integrity()
        queued = list(self._queue)
        assert self._reading <= self._waiting.keys()
        for file_id, waiting in self._waiting.items():
            assert all(sequence.awaited_file == file_id and sequence in queued for sequence in waiting)
        for sequence in queued:
            if sequence.awaited_file is not None:
                assert sequence in self._waiting[sequence.awaited_file]

    def _best_file(self, sequence: Sequence) -> KvFile | None:
        """The file with which the job is soonest ready, if that is sooner than without any."""
        prefill = self._rates.prefill_seconds_per_token
        best: KvFile | None = None
        best_seconds = (sequence.length - self._chooser.survey(sequence, _BETWEEN_TICKS).best_tokens) * prefill
        per_token = self._rates.read_seconds_per_token + self._rates.restore_seconds_per_token
        for file, match in self.index.matches(sequence.stream):
            keep = self._chooser.usable_tokens(sequence, match, file.length)
            seconds = (sequence.length - keep) * prefill + file.length * per_token
            if keep and seconds < best_seconds:
                best, best_seconds = file, seconds
        return best

    def _covered_tokens(self, tokens: Tokens) -> int:
        covered = self.index.covered_tokens(tokens)
        for coming in self._coming.values():
            match = common_prefix(coming.tokens, tokens)
            if self.can_truncate or match == coming.length:
                covered = max(covered, match)
        return covered

    def _stop_waiting(self, file_id: int) -> list[Sequence]:
        self._reading.discard(file_id)
        waiting = self._waiting.pop(file_id, [])
        for sequence in waiting:
            sequence.awaited_file = None
        return waiting
