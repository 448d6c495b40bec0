"""States that are saved while a prompt is read, of models whose state cannot be cut afterwards. Pure; in the worker.

Such a state is of use to another job only at its exact length. The lengths that will be wanted are those where the
conversation ends and the reply's header begins, since the next turn may have the reply in another form, and those where
queued jobs stop sharing a prompt.
"""

from typing import Final

from superfluid.scheduling.placement import SeedChooser
from superfluid.scheduling.plan import SaveLane
from superfluid.scheduling.prefix import CheckpointKind, HostEntry, PrefixIndex
from superfluid.scheduling.sequence import Lane

MIN_INPUT_TOKENS: Final = 128
"""A shorter conversation is computed again."""
MAX_CHECKPOINTS: Final = 64


class Checkpoints:
    """Reads lanes; adds entries to the index and takes its own out again."""

    def __init__(self, lanes: list[Lane], index: PrefixIndex, chooser: SeedChooser, *, can_truncate: bool) -> None:
        self._lanes = lanes
        self._index = index
        self._chooser = chooser
        self._can_truncate = can_truncate

    def placed(self, lane: Lane) -> None:
        """A job has got ``lane``: notes what is to be saved of its own input."""
        sequence = lane.sequence
        assert sequence is not None
        job = sequence.job
        if not self._can_truncate and job.input_tokens >= MIN_INPUT_TOKENS:
            sequence.checkpoints.setdefault(job.input_tokens, CheckpointKind.INPUT)
        for length in job.pinned_lengths if not self._can_truncate else ():
            sequence.checkpoints[length] = CheckpointKind.SHARED

    def take(self, tick: int) -> tuple[list[SaveLane], dict[int, HostEntry], list[int]]:
        """What to save of lanes that have come to one of their lengths, their entries by lane, and the ids of entries
        that are needless then."""
        saves: list[SaveLane] = []
        entries: dict[int, HostEntry] = {}
        dropped: list[int] = []
        for lane in self._lanes if not self._can_truncate else ():
            sequence = lane.sequence
            kind = None if sequence is None else sequence.checkpoints.pop(lane.length, None)
            if (
                kind is None
                or not self._chooser.losses.can_last(lane.length)
                or self._index.has(lane.held, lane.adapter)
            ):
                continue
            if kind is CheckpointKind.INPUT:
                dropped += self._index.drop_input_checkpoints(lane.held, lane.adapter)
            entry = self._index.add(lane.held, tick, is_transient=False, owner=lane.owner, adapter=lane.adapter)
            entry.checkpoint = kind
            entries[lane.index] = entry
            saves.append(SaveLane(lane.index, entry.entry_id, lane.length))
        if saves:
            dropped += self._index.drop_checkpoints_over(MAX_CHECKPOINTS)
        return saves, entries, dropped
