"""Carries a plan out on the engine: transfers, decode rows, the prompt chunk, sampling. Runs in the worker's tick loop.

Logits are sampled where the engine left them, before its next call; nothing copies a row of the vocabulary.
"""

import logging
import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from superfluid.clock import Clock
from superfluid.domain.job import Job
from superfluid.domain.request import SamplingParams
from superfluid.engine.interface import Engine, ImageRow, Logits, Row, StepResult
from superfluid.engine.lane_state import State
from superfluid.engine.sampling import (
    PENALTY_WINDOW_TOKENS,
    Draw,
    Sampler,
    Scores,
    greatest,
    is_penalizing,
    is_plainly_greedy,
)
from superfluid.errors import EngineFaultError
from superfluid.scheduling.plan import Chunk, DecodeLane, Drafted, Drawn, PlaceJob, SaveLane, StepOutcome, StepPlan
from superfluid.scheduling.scheduler import Scheduler
from superfluid.scheduling.sequence import Sequence
from superfluid.worker.draft_model import DraftModel, Wanted
from superfluid.worker.host_cache import HostCache
from superfluid.worker.images import WorkerImages
from superfluid.worker.interruption import Interruption
from superfluid.worker.protocol import TokenScores

OUTPUTS_TOGETHER: Final = 8
"""llama.cpp computes the logits of so many rows sooner than of one or two less: a step over eight lanes takes 33 ms
with all of them and 36 with seven. So a row whose logits nobody needs has them too if that makes the number full."""

_logger = logging.getLogger("superfluid_daemon::engine")


class Execution(msgspec.Struct):
    """What came of a plan, being filled. ``scores`` are those of jobs that asked for logprobs; ``faults`` say why the
    jobs of ``faulted`` failed. Durations in seconds."""

    drawn: list[Drawn] = []
    drafted: list[Drafted] = []
    replayed: list[int] = []
    chunk_completed: int = 0
    is_chunk_cut: bool = False
    is_decode_cut: bool = False
    cold_lanes: list[int] = []
    lost_entries: list[int] = []
    entry_bytes: dict[int, int] = {}
    faults: dict[int, str] = {}
    spoiled_lanes: list[int] = []
    scores: dict[int, TokenScores] = {}
    save_seconds: float = 0.0
    restore_seconds: float = 0.0
    draft_seconds: float = 0.0
    decode_seconds: float = 0.0
    chunk_seconds: float = 0.0
    sample_seconds: float = 0.0
    new_bytes: int = 0

    @property
    def engine_seconds(self) -> float:
        moves = self.save_seconds + self.restore_seconds
        return moves + self.draft_seconds + self.decode_seconds + self.chunk_seconds

    def outcome(self) -> StepOutcome:
        return StepOutcome(
            drawn=tuple(self.drawn),
            chunk_completed=self.chunk_completed,
            cold_lanes=tuple(self.cold_lanes),
            lost_entries=tuple(self.lost_entries),
            faulted=tuple(self.faults),
            decode_seconds=self.decode_seconds,
            chunk_seconds=self.chunk_seconds,
            entry_bytes=self.entry_bytes,
            replayed=tuple(self.replayed),
            save_seconds=self.save_seconds,
            restore_seconds=self.restore_seconds,
            is_chunk_cut=self.is_chunk_cut,
            drafted=tuple(self.drafted),
            draft_seconds=self.draft_seconds,
            is_decode_cut=self.is_decode_cut,
            new_bytes=self.new_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Draws:
    """How a job's tokens are drawn, settled once. ``is_plain``: greedily, and without scores."""

    params: SamplingParams
    is_penalizing: bool
    top_n: int | None
    is_plain: bool


class Executor:
    """One per worker. Belongs to the engine's thread. Reads the scheduler's running sequences and changes none."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        clock: Clock,
        images: WorkerImages | None = None,
        interruption: Interruption | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        """``interruption`` ends steps early. ``draft_model`` guesses where a plan has a ``draft_limit``."""
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock
        self._images = images or WorkerImages(engine, None)
        self._interruption = interruption or Interruption(engine, clock)
        self._draft_model = draft_model
        self._host = HostCache()
        self._sampler = Sampler(engine.facts.vocabulary_tokens, engine.unpenalized)
        self._ends = engine.end_of_generation
        self._draws: dict[int, _Draws] = {}
        self._started_over: set[int] = set()

    @property
    def host_cache(self) -> HostCache:
        return self._host

    def execute(self, plan: StepPlan) -> Execution:
        """Blocks for as long as the engine takes. Faults of single jobs are in the result; anything raised is a bug."""
        execution = Execution()
        for preempted in plan.preemptions:
            self.forget(preempted.job_id)
        if plan.saves or plan.drops or plan.placements:
            self._transfer(plan, execution)
        if plan.decodes:
            self._decode(plan, execution)
        if plan.chunk is not None and plan.chunk.lane not in execution.cold_lanes:
            self._prefill(plan.chunk, execution)
        for lane in execution.spoiled_lanes:
            _logger.warning("a lane held what is no number, and was overwritten", extra={"fields": {"lane": lane}})
            self._engine.scrub(lane)
        return execution

    def export(self, lane: int) -> State | None:
        """The state of a lane, between two ticks; ``None`` if the engine or the memory does not give it."""
        try:
            return self._engine.export_lane(lane)
        except (EngineFaultError, MemoryError) as error:
            _logger.warning("a lane could not be parked: %s", error, extra={"fields": {"lane": lane}})
            return None

    @property
    def new_bytes_total(self) -> int:
        """As much of what was exported so far went to new memory."""
        return self._engine.spare_memory.new_bytes_total

    def clear(self, lane: int) -> None:
        """Empties a lane that no job runs on, between two ticks."""
        self._engine.clear(lane)

    def set_threads(self, threads: int) -> None:
        """Takes effect with the next step, of the draft model too."""
        self._engine.set_threads(threads)
        if self._draft_model is not None:
            self._draft_model.set_threads(threads)

    def forget(self, job_id: int) -> None:
        """The job is over, or has lost its lane."""
        self._draws.pop(job_id, None)
        self._started_over.discard(job_id)

    def check_integrity(self) -> None:
        """Raises AssertionError if engine, host cache and scheduler disagree. For tests, between ticks."""
        self._host.check_integrity()
        statistics = self._scheduler.statistics()
        assert self._host.size_bytes == statistics.host_cache_bytes
        assert len(self._host) == statistics.host_cache_entries
        lanes = self._scheduler.lane_lengths()
        assert lanes == [self._engine.length(lane) for lane in range(len(lanes))]
        assert len(self._draws) == statistics.lanes_active

    def _transfer(self, plan: StepPlan, execution: Execution) -> None:
        begun = self._clock.monotonic()
        for save in plan.saves:
            self._save(save, execution)
        for drop in plan.drops:
            self._host.drop(drop.entry_id)
        if plan.is_system_short:
            self._engine.spare_memory.clear()
        saved = self._clock.monotonic()
        for place in plan.placements:
            self._draws[place.job_id] = _draws(self._scheduler.sequence(place.job_id).job, self._ends)
            if not self._place(place):
                execution.cold_lanes.append(place.lane)
                _logger.warning("a cached prefix was refused", extra={"fields": {"lane": place.lane}})
        execution.save_seconds = saved - begun
        execution.restore_seconds = self._clock.monotonic() - saved

    def _save(self, save: SaveLane, execution: Execution) -> None:
        new_bytes = self._engine.spare_memory.new_bytes_total
        try:
            execution.entry_bytes[save.entry_id] = self._host.save(self._engine, save.lane, save.entry_id)
            execution.new_bytes += self._engine.spare_memory.new_bytes_total - new_bytes
        except (EngineFaultError, MemoryError) as error:
            _logger.warning("a prefix could not be saved: %s", error, extra={"fields": {"lane": save.lane}})
            execution.lost_entries.append(save.entry_id)

    def _place(self, place: PlaceJob) -> bool:
        engine = self._engine
        if place.entry_id is not None and not self._restore(place, place.entry_id):
            return False
        if place.keep == 0:
            engine.clear(place.lane)
            return True
        return engine.truncate(place.lane, place.keep)

    def _restore(self, place: PlaceJob, entry_id: int) -> bool:
        """A lane for which there is not memory enough is a cold one, and the job computes what it lacks."""
        try:
            return self._host.restore(self._engine, place.lane, entry_id, place.entry_length)
        except MemoryError:
            self._engine.clear(place.lane)
            return False

    def _decode(self, plan: StepPlan, execution: Execution) -> None:
        guessed = self._guess(plan.decodes, execution)
        has_all_outputs = bool(plan.fillers) and len(plan.rows) % OUTPUTS_TOGETHER == 0
        rows: list[Row] = []
        sequences: list[Sequence] = []
        for work, sequence in [(work, self._scheduler.sequence(work.job_id)) for work in plan.rows]:
            lane = work.lane
            if lane in execution.cold_lanes:
                continue
            position = self._engine.length(lane)
            tokens = sequence.tokens[position : position + 1]
            wants = "last" if has_all_outputs or position == sequence.length - 1 else "none"
            draft = work.draft or guessed.get(lane, ())
            if draft:
                tokens, wants = np.array([tokens[0], *draft], np.int32), "all"
            rows.append(Row(lane, position, tokens, wants))
            sequences.append(sequence)
        if not rows:
            return
        begun = self._clock.monotonic()
        self._engine.use_adapter(sequences[0].job.adapter)
        decoding = frozenset([work.job_id for work in plan.decodes if work.lane not in execution.cold_lanes])
        with self._interruption.during_decode(decoding, len(rows) - len(decoding)):
            result = self._step(rows, sequences, execution)
        evaluated = self._clock.monotonic()
        execution.decode_seconds = evaluated - begun
        if result is not None and self._is_whole(rows, result, execution):
            self._draw_rows(rows, sequences, result, execution)
        execution.sample_seconds = self._clock.monotonic() - evaluated

    def _guess(self, decodes: tuple[DecodeLane, ...], execution: Execution) -> dict[int, tuple[int, ...]]:
        """What the draft model says, by lane."""
        wanted = [
            Wanted(work.lane, self._scheduler.sequence(work.job_id).stream, work.draft_limit)
            for work in decodes
            if work.draft_limit and work.lane not in execution.cold_lanes
        ]
        if not wanted or self._draft_model is None:
            return {}
        begun = self._clock.monotonic()
        drafts = self._draft_model.propose(wanted)
        execution.draft_seconds = self._clock.monotonic() - begun
        return drafts

    def _is_whole(self, rows: list[Row], result: StepResult, execution: Execution) -> bool:
        """A step that was ended early has given nobody anything: the lanes are as they were."""
        execution.is_decode_cut = any(
            completed < len(row.tokens) for row, completed in zip(rows, result.completed, strict=True)
        )
        if execution.is_decode_cut:
            for row in rows:
                self._engine.truncate(row.lane, row.position)
        return not execution.is_decode_cut

    def _draw_rows(self, rows: list[Row], sequences: list[Sequence], result: StepResult, execution: Execution) -> None:
        if all(map(self._is_plain, rows, sequences)):
            self._draw_greatest(rows, sequences, result.logits, execution)
            return
        index = 0
        for row, sequence in zip(rows, sequences, strict=True):
            count = 0 if row.wants_logits == "none" else len(row.tokens)
            if row.position < sequence.length - 1:
                execution.replayed.append(sequence.job_id)
            else:
                self._draw(row.lane, sequence, result.logits[index : index + count], execution, row.tokens[1:].tolist())
            index += count
        # Only now: what the logits are a view of is the engine's again with its next call.
        for row, sequence in zip(rows, sequences, strict=True):
            if len(row.tokens) > 1 and row.lane not in execution.spoiled_lanes:
                self._drop_wrong_guesses(row, sequence, execution)

    def _is_plain(self, row: Row, sequence: Sequence) -> bool:
        """Whether one token is to be drawn, without guesses behind it, and greedily."""
        is_one = len(row.tokens) == 1 and row.position == sequence.length - 1
        return is_one and self._draws[sequence.job_id].is_plain

    def _draw_greatest(self, rows: list[Row], sequences: list[Sequence], logits: Logits, execution: Execution) -> None:
        """A token for each row. Where the greatest has a bias, or is no number, that row is looked at by itself."""
        for index, token in enumerate(greatest(logits)):
            job_id = sequences[index].job_id
            if token is None or token in self._draws[job_id].params.logit_bias:
                self._draw(rows[index].lane, sequences[index], logits[index : index + 1], execution)
            else:
                execution.drawn.append(Drawn(job_id, token, token in self._ends))

    def _drop_wrong_guesses(self, row: Row, sequence: Sequence, execution: Execution) -> None:
        kept = row.position + sum([drawn.job_id == sequence.job_id for drawn in execution.drawn])
        if self._engine.length(row.lane) > kept and not self._engine.truncate(row.lane, kept):
            execution.faults[sequence.job_id] = "the engine does not let go of tokens that were guessed wrong"

    def _prefill(self, chunk: Chunk, execution: Execution) -> None:
        sequence = self._scheduler.sequence(chunk.job_id)
        tokens = sequence.tokens[chunk.start : chunk.start + chunk.length]
        begun = self._clock.monotonic()
        wants = "last" if chunk.is_last else "none"
        self._engine.use_adapter(sequence.job.adapter)
        if chunk.is_image:
            result = self._step_image(chunk, sequence, wants, execution)
        else:
            with self._interruption.during(chunk):
                result = self._step([Row(chunk.lane, chunk.start, tokens, wants)], [sequence], execution)
        evaluated = self._clock.monotonic()
        execution.chunk_seconds = evaluated - begun
        if result is None:
            return
        execution.chunk_completed = result.completed[0]
        execution.is_chunk_cut = result.completed[0] < chunk.length
        if chunk.is_last and result.completed[0] == chunk.length:
            self._draw(chunk.lane, sequence, result.logits[:1], execution)
            execution.sample_seconds += self._clock.monotonic() - evaluated

    def _step(self, rows: Rows[Row], sequences: list[Sequence], execution: Execution) -> StepResult | None:
        """``None`` if the engine refused: all jobs of the step have lost their lanes."""
        try:
            return self._engine.step(rows)
        except EngineFaultError as error:
            _logger.error("the engine refused a step: %s", error, extra={"fields": {"rows": len(rows)}})
            for sequence in sequences:
                execution.faults[sequence.job_id] = error.message
            return None

    def _step_image(self, chunk: Chunk, sequence: Sequence, wants: str, execution: Execution) -> StepResult | None:
        """As ``_step``, of a run of an image."""
        run = sequence.images.at(chunk.start)
        assert run is not None
        try:
            return self._images.step(ImageRow(chunk.lane, chunk.start, run.length, run.blob, run.index, wants))
        except EngineFaultError as error:
            _logger.error("an image could not be evaluated: %s", error, extra={"fields": {"lane": chunk.lane}})
            execution.faults[sequence.job_id] = error.message
            return None

    def _draw(
        self, lane: int, sequence: Sequence, logits: Logits, execution: Execution, guesses: Rows[int] = ()
    ) -> None:
        """The next token; and behind each of ``guesses`` that was right another one. ``logits`` has a row for each."""
        drawn: list[int] = []
        scores: Scores | None = None
        try:
            for row, guess in zip(logits, (*guesses, None), strict=True):
                token, scores = self._draw_one(sequence, drawn, row)
                drawn.append(token)
                if token != guess or token in self._ends:
                    break
        except EngineFaultError as error:
            self._spoiled(lane, sequence.job_id, error, execution)
            return
        execution.drawn += [Drawn(sequence.job_id, token, token in self._ends) for token in drawn]
        if guesses:
            right = sum([token == guess for token, guess in zip(drawn, guesses, strict=False)])
            execution.drafted.append(Drafted(sequence.job_id, len(guesses), right))
        if scores is not None:
            execution.scores[sequence.job_id] = TokenScores(scores.chosen, scores.top_tokens, scores.top_logprobs)

    def _spoiled(self, lane: int, job_id: int, error: EngineFaultError, execution: Execution) -> None:
        """The job starts over in a clean lane: what was there before may have left something. Not twice, though."""
        execution.chunk_completed = 0
        execution.spoiled_lanes.append(lane)
        if job_id in self._started_over:
            execution.faults[job_id] = error.message
        else:
            self._started_over.add(job_id)
            execution.cold_lanes.append(lane)

    def _draw_one(self, sequence: Sequence, drawn: list[int], logits: Logits) -> Draw:
        """The token behind the stream and what was ``drawn`` in this tick already. Raises EngineFaultError."""
        draws = self._draws[sequence.job_id]
        recent: list[int] = []
        if draws.is_penalizing:
            window = sequence.tokens[max(0, sequence.length - PENALTY_WINDOW_TOKENS) : sequence.length]
            recent = [*window[window >= 0].tolist(), *drawn]
        return self._sampler.draw(logits, draws.params, sequence.length + len(drawn), recent, top_n=draws.top_n)


def _draws(job: Job, ends: frozenset[int]) -> _Draws:
    params = job.sampling
    if job.ignore_eos:
        bias = {**params.logit_bias, **dict.fromkeys(ends, -math.inf)}
        params = msgspec.structs.replace(params, logit_bias=bias)
    is_plain = job.logprobs is None and is_plainly_greedy(params)
    return _Draws(params, is_penalizing(params), job.logprobs, is_plain)
