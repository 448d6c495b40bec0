"""The records that pass between the scheduler and the tick executor. Pure data; lives in the worker.

The scheduler decides from token ids, counts and measured durations alone. It never sees logits, state blobs or the
clock.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from superfluid.domain.reply import Finish
from superfluid.domain.request import QosClass


@dataclass(frozen=True, slots=True)
class SaveLane:
    """Export ``lane``, which holds ``length`` tokens, into host memory under ``entry_id``. Before anything else."""

    lane: int
    entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """A job that has lost ``lane`` to a better class and waits again, ``produced_tokens`` into its reply. The plan's
    saves still find its KV there."""

    job_id: int
    lane: int
    qos: QosClass
    session: int
    produced_tokens: int


@dataclass(frozen=True, slots=True)
class DropEntry:
    """Forget the host memory under ``entry_id``."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class PlaceJob:
    """Admit a job into ``lane``. With ``entry_id`` the lane is first replaced by that host entry (``entry_length``
    tokens); then it is truncated to ``keep`` tokens (0 clears it)."""

    job_id: int
    lane: int
    keep: int
    entry_id: int | None = None
    entry_length: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill ``tokens[start : start + length]`` of the job on ``lane``. ``is_last`` chunks yield the next token.

    With ``is_image`` it is a run of an image, which is evaluated as a whole.
    ``yields_to`` are the classes for whose arrival it is worth cutting short; it will take ``expected_seconds``.
    """

    job_id: int
    lane: int
    start: int
    length: int
    is_last: bool
    is_image: bool = False
    yields_to: tuple[QosClass, ...] = field(default=(), compare=False)
    expected_seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class DecodeLane:
    """Evaluate the job's next token on ``lane``. If that is the newest one, draw another; if not, the lane is catching
    up with a reply from before, or its prompt is being read, and nothing is drawn.

    Behind the newest one also the tokens of ``draft``, or up to ``draft_limit`` that a draft model guesses; as long as
    what is drawn is what was guessed, more is drawn. What was guessed wrong leaves the lane again.
    """

    job_id: int
    lane: int
    draft: tuple[int, ...] = ()
    draft_limit: int = 0


@dataclass(frozen=True, slots=True)
class EvictionLook:
    """The state before an eviction was decided on: blocks of all lanes, bytes of host memory that may be given up."""

    used_blocks: int
    total_blocks: int
    evictable_bytes: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One tick, in the order it is carried out: saves, drops, placements, then decode rows and the chunk.

    The scheduler plans either decode rows or a chunk, in turn while there are both, so that drawn tokens leave before
    the chunk begins and a cancellation need not wait for both. ``fillers`` are further rows of the decode step: of
    lanes between the decoding ones, each with the next token of its prompt. ``chunk_budget_tokens`` bounded the chunk.
    With ``pause_seconds`` there are jobs, but none may run before that time is over or something new comes in.
    """

    saves: tuple[SaveLane, ...] = ()
    drops: tuple[DropEntry, ...] = ()
    placements: tuple[PlaceJob, ...] = ()
    decodes: tuple[DecodeLane, ...] = ()
    chunk: Chunk | None = None
    chunk_budget_tokens: int = field(default=0, compare=False)
    preemptions: tuple[Preempted, ...] = ()
    pause_seconds: float = 0.0
    eviction_look: EvictionLook | None = field(default=None, compare=False)
    """What was there before an eviction was decided on, if one was."""
    fillers: tuple[DecodeLane, ...] = ()
    is_system_short: bool = field(default=False, compare=False)
    """The operating system says so: what is kept for states to come is to be given back."""

    @property
    def rows(self) -> tuple[DecodeLane, ...]:
        """Of the decode step, in the order of their lanes."""
        return tuple(sorted((*self.decodes, *self.fillers), key=lambda row: row.lane)) if self.fillers else self.decodes

    @property
    def has_moves(self) -> bool:
        """Whether lanes or host memory change hands."""
        return bool(self.saves or self.drops or self.placements or self.preemptions)

    @property
    def is_empty(self) -> bool:
        return not (self.decodes or self.chunk or self.has_moves)


class Drawn(NamedTuple):
    """A token drawn for a job in this tick, and whether it ends the turn."""

    job_id: int
    token: int
    is_end: bool


@dataclass(frozen=True, slots=True)
class Drafted:
    """How many tokens were guessed for a job in this tick, and how many of them were drawn then."""

    job_id: int
    proposed: int
    accepted: int


class StepOutcome(Struct, frozen=True):
    """What really happened. A plan can be carried out in part: an import may be refused (``cold_lanes``: those jobs
    start from nothing), a save may fail (``lost_entries``), a job may fault (``faulted``: its lane is empty).

    ``drawn`` has a job's tokens in their order: one, or with drafts several, none of them behind the end of the turn.
    A job of ``decodes`` or ``fillers`` that is neither in ``drawn`` nor in ``replayed`` did not advance. ``replayed``
    are those whose token was evaluated and none drawn. ``is_chunk_cut`` says that the chunk was ended early,
    ``is_decode_cut`` that the decode step was: nobody advanced. The durations are the engine's, for the rates that size
    the next chunk and weigh a transfer against a prefill.
    """

    drawn: tuple[Drawn, ...] = ()
    chunk_completed: int = 0
    cold_lanes: tuple[int, ...] = ()
    lost_entries: tuple[int, ...] = ()
    faulted: tuple[int, ...] = ()
    decode_seconds: float = 0.0
    chunk_seconds: float = 0.0
    entry_bytes: dict[int, int] = {}
    replayed: tuple[int, ...] = ()
    save_seconds: float = 0.0
    restore_seconds: float = 0.0
    is_chunk_cut: bool = False
    drafted: tuple[Drafted, ...] = ()
    draft_seconds: float = 0.0
    is_decode_cut: bool = False
    new_bytes: int = 0
    """Of what was saved: those for which there was no memory that had been in use before."""

    @property
    def engine_seconds(self) -> float:
        moves = self.save_seconds + self.restore_seconds
        return moves + self.draft_seconds + self.decode_seconds + self.chunk_seconds


@dataclass(frozen=True, slots=True)
class Retired:
    """A job that left its lane (or the queue), and why."""

    job_id: int
    finish: Finish


@dataclass(frozen=True, slots=True)
class Admitted:
    """A job that got its lane with ``warm_tokens`` of its stream already computed."""

    job_id: int
    warm_tokens: int


class StepResult(Struct, frozen=True):
    """What a completed plan came to. ``first_tokens`` are the jobs that drew their first since they got a lane."""

    admitted: tuple[Admitted, ...] = ()
    retired: tuple[Retired, ...] = ()
    first_tokens: tuple[int, ...] = ()
