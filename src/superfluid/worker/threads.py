"""With how many threads to compute while other processes want the cores. Pure: durations and times are arguments; in
the worker.

llama.cpp's threads wait for each other several hundred times a step, and spin while they do. When there are more of
them than free cores, two share one: each time, the one that spins uses up its turn before the other goes on, and a step
of 20 ms takes seconds. With as many threads as cores are left, a step takes little more than its share of the work.
"""

from collections import deque
from typing import Final, NamedTuple

READING_SECONDS: Final = 0.25
"""Computing time between two looks at the machine."""
CROWDED_SHARE: Final = 0.5
"""Of the computing time that threads have waited for a core, in two readings running: a step is then much slower than
with a thread fewer. A process that wants a third of a core comes to 0.2 to 0.4, and is better shared with."""
STARK_SHARE: Final = 0.8
"""One reading of this is enough, and a step in flight is not worth going on with."""
IDLE_PART: Final = 0.25
"""A worker that computes for less of the time than this is not judged by its waiting alone."""
TOUCHED_SHARE: Final = 0.2
"""With less waiting than this slow steps have another reason, a longer conversation say."""
WINDOW_STEPS: Final = 12
"""Decode steps that are looked at together."""
MARGIN: Final = 1.15
"""How much better a thread fewer must promise to be."""
LARGEST_COST: Final = 6.0
"""A single slow step counts as this many undisturbed ones at most."""
FIRST_REST_SECONDS: Final = 0.5
BLIND_REST_SECONDS: Final = 2.0
"""Where the system does not tell who uses the cores, and trying is the only way to know."""
LONGEST_REST_SECONDS: Final = 32.0
RELAPSE_SECONDS: Final = 10.0
"""More threads that were given up within this time were a mistake: the next rest is twice as long."""
PATIENCE: Final = 2.0
PATIENCE_SECONDS: Final = 0.2
"""A step whose threads wait for cores is ended when it has taken this many times what it should, as far as that is
known, and that much more."""
_DRIFT: Final = 1.001
"""What an undisturbed step may come to cost more from one to the next: streams grow."""


class CoreReading(NamedTuple):
    """What the system says of the ``seconds`` since the reading before. ``used_by_others``: how many of the CPUs that
    this process may use, on average."""

    seconds: float
    waited_seconds: float
    used_by_others: float


class ThreadPolicy:
    """Steps aside, by at least one thread, when its threads wait for cores: for half of the time, or for a fifth of it
    if decode steps take longer than with one fewer. Takes threads back once the system has room for them, and later the
    more often that was wrong.

    What an undisturbed step costs it learns with all threads, for each count of lanes.
    """

    def __init__(self, threads: int, cpus: int | None = None) -> None:
        """``threads`` at most, on so many ``cpus``."""
        self.threads = self._most = threads
        self._cpus = threads if cpus is None else cpus
        self._undisturbed: dict[int, float] = {}
        self._costs: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._cost_aside = threads / max(1, threads - 1)
        self._computed_seconds = 0.0
        self._share_before = 0.0
        self._is_mixed = False
        self._room = threads
        self._can_see = False
        self._changed_at = 0.0
        self._has_risen = False
        self._rest_seconds = BLIND_REST_SECONDS

    @property
    def is_aside(self) -> bool:
        return self.threads < self._most

    @property
    def is_reading_due(self) -> bool:
        return self._most > 1 and self._computed_seconds >= READING_SECONDS

    def stepped(self, lanes: int, seconds: float, now: float) -> None:
        """A decode step over ``lanes`` lanes, without drafts, has taken that long."""
        self.computed(seconds)
        if self._most == 1 or seconds <= 0.0:
            return
        if not self.is_aside:
            known = self._undisturbed.get(lanes, seconds)
            self._undisturbed[lanes] = min(seconds, known * _DRIFT)
        base = self._undisturbed.get(lanes)
        if base is not None and self.threads >= self._most - 1:
            self._costs.append(min(LARGEST_COST, seconds / base))
        if not self.is_aside:
            self._weigh(now)
        elif not self._can_see and now - self._changed_at >= self._rest_seconds:
            self._rise(self._most, now)

    def computed(self, seconds: float) -> None:
        """Something else than such a step has taken that long."""
        self._computed_seconds += seconds

    def take(self, reading: CoreReading | None, now: float) -> None:
        """What the system says, when ``is_reading_due``; ``None`` if it does not tell."""
        computed, self._computed_seconds = self._computed_seconds, 0.0
        is_mixed, self._is_mixed = self._is_mixed, False
        if reading is None:
            return
        # Threads that wake up now and then while there is nothing to compute wait too, a little.
        share = reading.waited_seconds / max(computed, READING_SECONDS, IDLE_PART * reading.seconds)
        share_before, self._share_before = self._share_before, share
        room_before, self._room = self._room, int(self._cpus - reading.used_by_others + 0.5)
        if not self._can_see:
            self._can_see, self._rest_seconds = True, FIRST_REST_SECONDS
        is_crowded = share >= STARK_SHARE or share + share_before >= 2 * CROWDED_SHARE
        if is_crowded and not is_mixed and self.threads > 1:
            self._fall(now)
        elif self.is_aside and now - self._changed_at >= self._rest_seconds:
            wanted = min(self._most, self._room, room_before)
            if wanted > self.threads:
                self._rise(wanted, now)

    def interrupted(self, now: float) -> None:
        """A step was ended because it was overdue and its threads waited for cores."""
        if self.threads > 1:
            self._fall(now)

    def patience_seconds(self, lanes: int) -> float | None:
        """After which a decode step over ``lanes`` lanes (0: a chunk) is overdue. ``None``: nothing can be done about
        it."""
        if self.threads == 1:
            return None
        return PATIENCE * self._undisturbed.get(lanes, 0.0) * self._most / self.threads + PATIENCE_SECONDS

    def _weigh(self, now: float) -> None:
        is_touched = not self._can_see or self._share_before >= TOUCHED_SHARE
        if is_touched and sum(self._costs) > WINDOW_STEPS * self._cost_aside * MARGIN:
            self._fall(now)

    def _fall(self, now: float) -> None:
        first = FIRST_REST_SECONDS if self._can_see else BLIND_REST_SECONDS
        is_relapse = self._has_risen and now - self._changed_at < RELAPSE_SECONDS
        if is_relapse:
            self._rest_seconds = min(LONGEST_REST_SECONDS, 2 * self._rest_seconds)
        elif not self.is_aside:
            self._rest_seconds = first
        self._has_risen = False
        self._change(max(1, min(self.threads - 1, self._room)), now)

    def _rise(self, threads: int, now: float) -> None:
        if len(self._costs) == WINDOW_STEPS:
            self._cost_aside = sum(self._costs) / WINDOW_STEPS
        self._has_risen = True
        self._change(threads, now)

    def _change(self, threads: int, now: float) -> None:
        self.threads = threads
        self._changed_at = now
        self._costs.clear()
        self._share_before = 0.0
        # Some of what the next reading says is of before.
        self._is_mixed = self._computed_seconds > 0.0
