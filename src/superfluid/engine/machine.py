"""What the machine offers this process: cores and memory. Runs in the worker, once at load."""

import os
import sys
from pathlib import Path
from typing import Final

_TOPOLOGY: Final = Path("/sys/devices/system/cpu")
_MEMORY: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def usable_cpus() -> frozenset[int]:
    """Logical CPUs that this process may run on."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores(cpus: frozenset[int], topology: Path = _TOPOLOGY) -> int:
    """Physical cores behind ``cpus``; where the system does not tell, every CPU counts as one."""
    cores = {_core_of(topology / f"cpu{cpu}" / "topology", cpu) for cpu in cpus}
    return max(1, len(cores))


def available_memory_bytes(meminfo: Path = _MEMORY, cgroup: Path = _CGROUP) -> int | None:
    """Memory to be had without swapping, within the control group's bound; ``None`` if the system does not tell."""
    bounds = [bound for bound in (_meminfo_available(meminfo), _cgroup_available(cgroup)) if bound is not None]
    return min(bounds, default=None)


def _core_of(directory: Path, cpu: int) -> tuple[str, str]:
    try:
        package = (directory / "physical_package_id").read_text().strip()
        return package, (directory / "core_id").read_text().strip()
    except OSError:
        return "cpu", str(cpu)


def _meminfo_available(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return None if line is None else int(line.split()[1]) * 1024


def _cgroup_available(directory: Path) -> int | None:
    try:
        limit = (directory / "memory.max").read_text().strip()
        used = (directory / "memory.current").read_text().strip()
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.isdigit() else None
