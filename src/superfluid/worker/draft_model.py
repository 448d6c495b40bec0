"""A small model that guesses what the big one will draw, lane by lane in step with it. Engine's thread; in the worker.

What its lanes hold is never trusted further than it agrees with the stream: a job that came, went or moved costs it an
evaluation of what differs.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from superfluid.engine.interface import Engine, Row, Tokens
from superfluid.errors import EngineFaultError
from superfluid.scheduling.token_tree import common_prefix

CATCH_UP_TOKENS: Final = 256
"""Of a stream that the draft model has not read yet, all lanes together get this many a tick; until a lane is there,
nothing is guessed for it."""

_logger = logging.getLogger("superfluid_daemon::engine")


class Wanted(NamedTuple):
    """Up to ``limit`` tokens behind ``stream`` are wanted for the job on ``lane``."""

    lane: int
    stream: Tokens
    limit: int


class DraftModel:
    """``engine`` has a lane for each of the target's, and a state that can be cut."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        facts = engine.facts
        self._window = facts.window_tokens
        self._held: list[Tokens] = [np.empty(0, np.int32)] * facts.lanes

    def propose(self, wanted: Sequence[Wanted]) -> dict[int, tuple[int, ...]]:
        """Greedy guesses by lane, in ascending order of lanes; lanes without any are absent. Blocks.

        It never raises for the engine's sake: a draft that cannot be had is none.
        """
        try:
            return self._propose(wanted)
        except EngineFaultError as error:
            _logger.warning("the draft model refused a step: %s", error)
            return {}

    def set_threads(self, threads: int) -> None:
        """Takes effect with the next step."""
        self._engine.set_threads(threads)

    def clear(self) -> None:
        """Forgets every stream."""
        for lane in range(len(self._held)):
            self._engine.clear(lane)
            self._held[lane] = self._held[lane][:0]

    def _propose(self, wanted: Sequence[Wanted]) -> dict[int, tuple[int, ...]]:
        rows = self._catch_up_rows(wanted)
        drafts: dict[int, list[int]] = {}
        limits = {want.lane: min(want.limit, self._window - len(want.stream)) for want in wanted}
        while rows:
            logits = iter(self._engine.step(rows).logits)
            following: list[Row] = []
            for row in rows:
                if row.wants_logits == "none":
                    continue
                token = int(next(logits).argmax())
                draft = drafts.setdefault(row.lane, [])
                draft.append(token)
                if len(draft) < limits[row.lane]:
                    following.append(Row(row.lane, row.position + len(row.tokens), np.array([token], np.int32)))
                    self._held[row.lane] = np.append(self._held[row.lane], np.int32(token))
            rows = following
        return {lane: tuple(draft) for lane, draft in drafts.items()}

    def _catch_up_rows(self, wanted: Sequence[Wanted]) -> list[Row]:
        """What each lane lacks of its stream: at least the last token, whose logits are needed."""
        room = CATCH_UP_TOKENS
        rows: list[Row] = []
        for lane, stream, _ in wanted:
            # An image has no tokens that this model could read.
            if len(stream) >= self._window or (stream < 0).any():
                continue
            keep = self._agree(lane, stream)
            count = min(len(stream) - keep, room)
            if count == 0:
                continue
            room -= count
            tokens = stream[keep : keep + count].copy()
            rows.append(Row(lane, keep, tokens, "last" if keep + count == len(stream) else "none"))
            self._held[lane] = np.concatenate([self._held[lane][:keep], tokens])
        return rows

    def _agree(self, lane: int, stream: Tokens) -> int:
        """Cuts the lane to what it has in common with the stream, less the last token; returns how much that is."""
        held = self._held[lane][: self._engine.length(lane)]
        keep = min(common_prefix(held, stream), len(stream) - 1)
        return keep if self._engine.truncate(lane, keep) else 0
