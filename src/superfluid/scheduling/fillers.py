"""Prompt tokens that ride along in a decode step, to keep its lanes together. Pure; lives in the worker.

The engine computes one graph for each run of neighbouring lane ids, and each reads all weights. A lane between the
decoding ones whose prompt is being read would part them. One token of that prompt costs less than another graph: with
llama.cpp on two cores seven lanes of eight take 38 ms with a gap between them, and 33 ms with that lane.
"""

from collections.abc import Sequence as Rows
from itertools import pairwise

from superfluid.scheduling.plan import DecodeLane
from superfluid.scheduling.sequence import SEAM_TOKENS, Lane


def fillers(lanes: Rows[Lane], step: Rows[DecodeLane], most_rows: int = 0) -> tuple[DecodeLane, ...]:
    """Rows of the lanes between those of ``step``, in the order of their ids: of each gap all or none, since a gap that
    stays costs a graph whatever its width. With them the step has at most ``most_rows`` rows, if that is not 0, and no
    more than twice as many as without: few replies are not to wait for many prompts."""
    most_rows = min(most_rows or 2 * len(step), 2 * len(step))
    rows: list[DecodeLane] = []
    for left, right in pairwise(step):
        gap = [_row(lane, lanes[left.lane].adapter) for lane in lanes[left.lane + 1 : right.lane]]
        filling = [row for row in gap if row is not None]
        has_room = len(step) + len(rows) + len(filling) <= most_rows
        if has_room and len(filling) == len(gap):
            rows += filling
    return tuple(rows)


def _row(lane: Lane, adapter: int) -> DecodeLane | None:
    """The next token of the prompt that is being read on ``lane``, unless that is an image, or one token would be left
    over of the text: a chunk is never that short."""
    sequence = lane.sequence
    if sequence is None or not lane.is_prefilling or lane.adapter != adapter:
        return None
    if sequence.images.at(lane.length) is not None:
        return None
    rest = sequence.images.text_end(lane.length, sequence.prefill_end) - lane.length
    return lane.decode if rest > SEAM_TOKENS else None
