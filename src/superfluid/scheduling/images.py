"""Where a job's stream must not be cut: in the middle of an image. Pure; lives in the worker."""

from bisect import bisect_right
from collections.abc import Sequence

from superfluid.domain.media import ImageRun
from superfluid.errors import InvalidValueError


class ImageRuns:
    """The image runs of one stream, in order."""

    __slots__ = ("_runs", "_starts")

    def __init__(self, runs: Sequence[ImageRun]) -> None:
        self._runs = tuple(runs)
        self._starts = [run.position for run in runs]

    def at(self, position: int) -> ImageRun | None:
        """The run that begins there."""
        index = bisect_right(self._starts, position) - 1
        return self._runs[index] if index >= 0 and self._starts[index] == position else None

    def kept(self, keep: int) -> int:
        """``keep`` or a little less, so that neither an image is cut nor a single token of the text before one is left
        over that was not alone there from the beginning: it would be evaluated with other roundings."""
        index = bisect_right(self._starts, keep) - 1
        if index >= 0 and keep < self._runs[index].end:
            return self._starts[index]
        text_start = self._runs[index].end if index >= 0 else 0
        is_one_left = index + 1 < len(self._runs) and self._starts[index + 1] - keep == 1
        return keep - 1 if is_one_left and keep > text_start else keep

    def text_end(self, position: int, end: int) -> int:
        """How far the text goes on from ``position``: to the next image, at most to ``end``."""
        index = bisect_right(self._starts, position)
        return min(end, self._starts[index]) if index < len(self._starts) else end


def require_image_runs(runs: Sequence[ImageRun], prompt_tokens: int) -> None:
    """Raises InvalidValueError unless they are in order and apart, within the prompt."""
    end = 0
    for run in runs:
        if run.position < end or run.length < 1 or run.end > prompt_tokens:
            raise InvalidValueError("the images of the request are not where they should be")
        end = run.end
