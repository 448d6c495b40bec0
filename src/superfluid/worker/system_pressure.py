"""How short of memory the machine is, as Linux tells it: the share of time that processes wait for memory.

Runs in the worker, between two ticks.
"""

import logging
from pathlib import Path
from typing import Final

from superfluid.scheduling.pressure import PressureLevel

PRESSURE_FILE: Final = Path("/proc/pressure/memory")
WARNING_PERCENT: Final = 10.0
"""Of the last ten seconds in which some process waited."""
CRITICAL_PERCENT: Final = 5.0
"""Of the last ten seconds in which all of them did."""

_logger = logging.getLogger("superfluid_daemon::scheduler")


def parse_pressure(text: str) -> PressureLevel:
    """Of the file's two lines, ``some`` and ``full``. Raises ValueError for anything else."""
    averages: dict[str, float] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        fields = dict(part.split("=", 1) for part in rest.split())
        averages[kind] = float(fields["avg10"]) if "avg10" in fields else 0.0
    if "some" not in averages:
        raise ValueError("no line begins with 'some'")
    if averages.get("full", 0.0) >= CRITICAL_PERCENT:
        return PressureLevel.CRITICAL
    return PressureLevel.WARNING if averages["some"] >= WARNING_PERCENT else PressureLevel.NONE


class SystemPressure:
    """Asks the file. Where there is none (another system, a container without it), there is never any pressure."""

    def __init__(self, path: Path = PRESSURE_FILE) -> None:
        self._path: Path | None = path
        self._has_warned = False

    def read(self) -> PressureLevel:
        """Tens of microseconds. A file that is not there, or that the kernel refuses to read, is not asked again; one
        that says something else is, and means no pressure until then."""
        if self._path is None:
            return PressureLevel.NONE
        try:
            return parse_pressure(self._path.read_text(encoding="ascii"))
        except OSError as error:
            _logger.debug("the system does not tell its memory pressure: %s", error)
            self._path = None
        except ValueError as error:
            if not self._has_warned:
                _logger.warning("the system's memory pressure cannot be read: %s", error)
            self._has_warned = True
        return PressureLevel.NONE
