"""The cores that the machine offers this process. Runs in the worker, once at load."""

import os
import sys
from pathlib import Path
from typing import Final

_TOPOLOGY: Final = Path("/sys/devices/system/cpu")


def usable_cpus() -> frozenset[int]:
    """Logical CPUs that this process may run on."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores(cpus: frozenset[int], topology: Path = _TOPOLOGY) -> int:
    """Physical cores behind ``cpus``; where the system does not tell, every CPU counts as one."""
    cores = {_core_of(topology / f"cpu{cpu}" / "topology", cpu) for cpu in cpus}
    return max(1, len(cores))


def _core_of(directory: Path, cpu: int) -> tuple[str, str]:
    try:
        package = (directory / "physical_package_id").read_text().strip()
        return package, (directory / "core_id").read_text().strip()
    except OSError:
        return "cpu", str(cpu)
