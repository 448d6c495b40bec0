"""A job on its way through the scheduler, and the lanes that hold KV. Pure data with invariants; in the worker."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from superfluid.domain.job import Job, ParkKind
from superfluid.domain.request import QosClass
from superfluid.scheduling.gates import Guesser
from superfluid.scheduling.images import ImageRuns
from superfluid.scheduling.plan import DecodeLane
from superfluid.scheduling.prefix import CheckpointKind
from superfluid.scheduling.token_tree import Tokens

NO_TOKENS: Final[Tokens] = np.empty(0, np.int32)
SEAM_TOKENS: Final = 2
"""A seam evaluates at least this many tokens again: a batch of one token takes another path through the engine's
matrix kernels than a prompt does, and its results differ in the last bits."""


class Sequence:
    """One job's token stream, growing in place.

    ``length`` tokens are known. Those up to ``prefill_end`` reach the lane in chunks, the others one a tick. While it
    is queued (``lane_index`` -1), ``leader`` is the sequence whose prefill it waits for, until that one's lane holds
    ``needed_tokens``; ``awaited_file`` is the KV file that is being read for it, ``held_entry`` the host entry that
    came of that. ``checkpoints`` are the lengths at which the lane is to be saved on its way, if it comes to them.

    ``queued_at``, ``passed_ticks`` (how long only younger prompts were read) and ``granted_until`` are in the
    scheduler's time. Until ``granted_until`` a lane that was had by long waiting counts as ``granted_class``.
    ``guesser`` is there once it has guessed ahead.
    """

    __slots__ = (
        "_drawn_before",
        "_is_replayed",
        "_submitted_tokens",
        "awaited_file",
        "checkpoints",
        "decoded_turn",
        "granted_class",
        "granted_until",
        "guesser",
        "has_looked_on_disk",
        "held_entry",
        "images",
        "is_cut_short",
        "job",
        "job_id",
        "lane_index",
        "leader",
        "leaders_tried",
        "length",
        "needed_tokens",
        "order",
        "passed_ticks",
        "prefill_end",
        "prefill_goal",
        "progress_tick",
        "queued_at",
        "refused_leader",
        "tokens",
        "warm_from",
        "warm_tokens",
    )

    def __init__(self, job: Job, tokens: Tokens, *, order: int, window_tokens: int, is_replayed: bool) -> None:
        """``is_replayed``: a reply's earlier tokens go into the lane one a tick, as they were first computed."""
        self.job = job
        self.job_id = job.job_id
        self.images = ImageRuns(job.images)
        self.order = order
        self.length = len(tokens)
        self._submitted_tokens = len(tokens)
        self.tokens: Tokens = np.empty(min(window_tokens, self.length + job.max_tokens), np.int32)
        self.tokens[: self.length] = tokens
        self._is_replayed = is_replayed
        self.lane_index = -1
        self.warm_tokens = 0
        self.warm_from = ""
        self.progress_tick = 0
        self.queued_at = 0.0
        self.granted_class = int(job.qos)
        self.granted_until = 0.0
        self.passed_ticks = 0.0
        self.checkpoints: dict[int, CheckpointKind] = {}
        self.guesser: Guesser | None = None
        self.wait_again()

    def wait_again(self) -> None:
        """The job is queued: for the first time, or because it has lost its lane. What it has drawn stays."""
        self.prefill_goal = self.job.prompt_tokens if self._is_replayed and self.has_reply else self.length
        self.prefill_end = self.prefill_goal
        self._drawn_before = self.drawn_tokens
        self.decoded_turn = -1
        self.is_cut_short = False
        self.leader: Sequence | None = None
        self.needed_tokens = 0
        self.leaders_tried = 0
        self.refused_leader: int | None = None
        self.has_looked_on_disk = False
        self.awaited_file: int | None = None
        self.held_entry: int | None = None

    @property
    def has_reply(self) -> bool:
        return self.length > self.job.prompt_tokens

    @property
    def drawn_tokens(self) -> int:
        """Tokens drawn since the job was submitted."""
        return self.length - self._submitted_tokens

    @property
    def is_first_token(self) -> bool:
        """Whether the newest token is the first since the job got its lane."""
        return self.drawn_tokens == self._drawn_before + 1

    def held_class(self, now: float) -> int:
        """What the job counts as on its lane: when somebody wants that, and when a prompt is chosen."""
        return self.granted_class if now < self.granted_until else self.job.qos

    @property
    def stream(self) -> Tokens:
        """All tokens so far: a view."""
        return self.tokens[: self.length]

    def append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1

    def usable_tokens(self, match: int) -> int:
        """How many of ``match`` equal tokens in some KV state the sequence may keep, so that the rest is computed in
        the shapes an unbroken run would have used: a seam is evaluated again, but a cut reply goes on with its next
        decode row, as if nothing had happened."""
        if self.has_reply and match >= self.length - 1:
            return self.length - 1
        if self.prefill_goal < self.length and match >= self.prefill_goal:
            return match
        return self.images.kept(max(0, min(match, self.prefill_goal - SEAM_TOKENS)))

    def chunk_stop(self, position: int) -> int:
        """Where a chunk from ``position`` on must end: at the prompt's end, or at a checkpoint on the way."""
        stops = [at for at in self.checkpoints if position + SEAM_TOKENS <= at <= self.prefill_end - SEAM_TOKENS]
        return min(stops, default=self.prefill_end)

    def begin_at(self, keep: int) -> None:
        """The lane holds the first ``keep`` tokens; the rest is prefilled, or decoded if that is how it came about."""
        self.warm_tokens = keep
        is_continued = self.has_reply and keep >= self.prefill_goal - 1
        self.prefill_end = keep if is_continued else self.prefill_goal


@dataclass(slots=True, eq=False)
class Lane:
    """One sequence id of the engine: ``length`` of ``tokens`` are in its KV, whoever left them there.

    ``sequence`` is the job that runs on it, ``None`` if it is free. ``placed_tick`` is when that job came. ``owner``
    and ``park`` are those of the last job; ``is_settled`` says that what it left has been saved, or is not to be.
    ``adapter`` is the one that the KV was computed with: it is of no use to jobs of another.
    """

    index: int
    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    length: int = 0
    sequence: Sequence | None = None
    placed_tick: int = -1
    decode: DecodeLane | None = None
    owner: int | None = None
    park: ParkKind = ParkKind.NONE
    is_settled: bool = True
    adapter: int = 0

    @property
    def held(self) -> Tokens:
        """The tokens in the KV: a view."""
        return self.tokens[: self.length]

    @property
    def is_prefilling(self) -> bool:
        return self.sequence is not None and self.length < self.sequence.prefill_end

    @property
    def is_decoding(self) -> bool:
        return self.sequence is not None and self.length >= self.sequence.prefill_end

    @property
    def is_background(self) -> bool:
        """Whether its job is of the classes that a background rate slows down: the default one, too."""
        return self.sequence is not None and self.sequence.job.qos >= QosClass.AGENT

    def place(self, sequence: Sequence, keep: int, tick: int) -> None:
        self.sequence = sequence
        sequence.lane_index = self.index
        self.tokens = sequence.tokens
        self.length = keep
        self.placed_tick = tick
        self.decode = DecodeLane(sequence.job_id, self.index)
        self.owner, self.adapter = sequence.job.session or None, sequence.job.adapter
        # Files of KV are of the model alone.
        self.park = ParkKind.NONE if self.adapter else sequence.job.park
        sequence.begin_at(keep)

    def release(self) -> None:
        """The job leaves; its KV stays."""
        if self.sequence is not None:
            self.sequence.lane_index = -1
            self.is_settled = self.length == 0
        self.sequence = None
        self.decode = None

    def empty(self) -> None:
        """The KV is gone."""
        self.length = 0
        self.is_settled = True
