"""What Linux says of this process and the cores: how long its threads have waited for one, what others use of them.

Runs in the worker. A reading takes some tens of microseconds.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from superfluid.worker.threads import CoreReading

TASKS: Final = Path("/proc/self/task")
STAT: Final = Path("/proc/stat")
_NANOSECOND: Final = 1e-9
_SCHEDSTAT_BYTES: Final = 80
"""Three numbers of at most twenty digits."""
_BUSY_FIELDS: Final = (0, 1, 2, 5, 6, 7)
"""Of a CPU's line: user, nice, system, irq, softirq, steal. The others are idle time, or counted in these already."""


def parse_waited(text: bytes) -> float:
    """Seconds a thread was ready without a core, of its ``schedstat``. Raises ValueError."""
    return int(text.split()[1]) * _NANOSECOND


def parse_busy(lines: Iterable[str], cpus: Collection[int], ticks_per_second: int) -> float:
    """Seconds that ``cpus`` were not idle, added up. Raises ValueError if a line is none of the file's, or none is of
    these CPUs."""
    ticks, seen = 0, 0
    for line in lines:
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu"):
            break
        if name == "cpu" or int(name[3:]) not in cpus:
            continue
        fields = [int(field) for field in rest.split()]
        ticks += sum([fields[index] for index in _BUSY_FIELDS if index < len(fields)])
        seen += 1
    if seen == 0:
        raise ValueError("no line of these CPUs")
    return ticks / ticks_per_second


class WaitedTime:
    """How long all threads of this process have waited for a core. One per thread that asks.

    The files of living threads stay open: opening one takes many times as long as reading it.
    """

    def __init__(self, tasks: Path = TASKS) -> None:
        self._tasks = tasks
        self._before: dict[str, float] = {}
        self._descriptors: dict[str, int] = {}

    def read(self) -> float | None:
        """Seconds since the last time, added up over the threads; ``None`` where the system does not tell."""
        try:
            names = os.listdir(self._tasks)
        except OSError:
            return None
        self.close(self._descriptors.keys() - names)
        now: dict[str, float] = {}
        for name in names:
            try:
                now[name] = parse_waited(self._read_file(name))
            except (OSError, ValueError, IndexError):
                # The thread has just ended; or this kernel keeps no such record, for any.
                self.close([name])
        before, self._before = self._before, now
        return sum([waited - before.get(name, 0.0) for name, waited in now.items()]) if now else None

    def close(self, names: Iterable[str]) -> None:
        """Lets go of the files of these threads."""
        for name in names:
            descriptor = self._descriptors.pop(name, None)
            if descriptor is not None:
                os.close(descriptor)

    def _read_file(self, name: str) -> bytes:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            path = f"{self._tasks}/{name}/schedstat"
            descriptor = self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(descriptor, _SCHEDSTAT_BYTES, 0)


class CoreUse:
    """Readings for ``ThreadPolicy``."""

    def __init__(
        self,
        cpus: Collection[int],
        *,
        tasks: Path = TASKS,
        stat: Path = STAT,
        wall_seconds: Callable[[], float] = time.monotonic,
        own_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        self._cpus = cpus
        self._waited = WaitedTime(tasks)
        self._stat = stat
        self._wall_seconds = wall_seconds
        self._own_seconds = own_seconds
        self._before: tuple[float, float] | None = None

    def read(self) -> CoreReading | None:
        """``None`` at first, and where the system does not tell."""
        waited = self._waited.read()
        try:
            with self._stat.open(encoding="ascii") as lines:
                busy = parse_busy(lines, self._cpus, os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError):
            return None
        now, foreign = self._wall_seconds(), busy - self._own_seconds()
        before, self._before = self._before, (now, foreign)
        if waited is None or before is None or now <= before[0]:
            return None
        seconds = now - before[0]
        return CoreReading(seconds, waited, max(0.0, (foreign - before[1]) / seconds))
