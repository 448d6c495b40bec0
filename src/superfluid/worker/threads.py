"""With how many threads to decode while other processes want the cores. Pure: durations are arguments; in the worker.

llama.cpp's threads wait for each other several hundred times a step. When one of them has lost its core, all stand
still until it has one again; with one thread fewer than cores, the system has room for the others.
"""

from collections import deque
from typing import Final

WINDOW_STEPS: Final = 24
"""Steps that are looked at together."""
PROBE_STEPS: Final = 8
"""Steps that tell whether coming back is worth it."""
MARGIN: Final = 1.15
"""How much better the other count must promise to be."""
FIRST_REST_SECONDS: Final = 2.0
LONGEST_REST_SECONDS: Final = 32.0
_DRIFT: Final = 1.001
"""What an undisturbed step may come to cost more from one to the next: streams grow."""


class ThreadPolicy:
    """Compares mean step times, each in units of an undisturbed step over as many lanes.

    With all threads it learns what that is. It steps aside by one thread when a window has on average cost more than a
    step with one thread fewer would; after a rest it tries again, and rests twice as long each time in vain.
    """

    def __init__(self, threads: int) -> None:
        self.threads = self._most = threads
        self._undisturbed: dict[int, float] = {}
        self._recent: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._aside = threads / max(1, threads - 1)
        self._rested_seconds = 0.0
        self._rest_seconds = FIRST_REST_SECONDS
        self._is_probing = False

    @property
    def is_aside(self) -> bool:
        return self.threads < self._most

    def observe(self, lanes: int, seconds: float) -> int:
        """A decode step with ``threads`` over ``lanes`` lanes has taken that long. The count for the next one."""
        if self._most == 1 or seconds <= 0.0:
            return self.threads
        if not self.is_aside:
            known = self._undisturbed.get(lanes, seconds)
            self._undisturbed[lanes] = min(seconds, known * _DRIFT)
        base = self._undisturbed.get(lanes)
        if base is not None:
            self._recent.append(seconds / base)
        if self.is_aside:
            self._rest(seconds)
        else:
            self._look()
        return self.threads

    def _look(self) -> None:
        mean = sum(self._recent) / max(1, len(self._recent))
        if self._is_probing and len(self._recent) >= PROBE_STEPS:
            self._is_probing = False
            if mean * MARGIN > self._aside:
                self._rest_seconds = min(LONGEST_REST_SECONDS, 2 * self._rest_seconds)
                self._switch(self._most - 1)
            else:
                self._rest_seconds = FIRST_REST_SECONDS
        elif len(self._recent) == WINDOW_STEPS and mean > self._aside * MARGIN:
            self._switch(self._most - 1)

    def _rest(self, seconds: float) -> None:
        self._rested_seconds += seconds
        if self._rested_seconds >= self._rest_seconds:
            if len(self._recent) >= PROBE_STEPS:
                self._aside = sum(self._recent) / len(self._recent)
            self._is_probing = True
            self._switch(self._most)

    def _switch(self, threads: int) -> None:
        self.threads = threads
        self._recent.clear()
        self._rested_seconds = 0.0
