"""What a process has used, as the kernel counts it: CPU seconds and memory. Linux reads /proc, others ask `ps`."""

import os
import subprocess
from pathlib import Path

_UTIME_FIELD = 11  # counted behind the ")" that ends the command's name
_STIME_FIELD = 12


def cpu_seconds(pid: int) -> float:
    """User and system time of the process with all its threads, without its children. Resolution is 10 ms."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[_UTIME_FIELD]) + int(fields[_STIME_FIELD])) / os.sysconf("SC_CLK_TCK")
    return parse_cpu_time(_ps(pid, "time"))


def resident_bytes(pid: int) -> int:
    """Resident memory of the process alone."""
    statm = Path(f"/proc/{pid}/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return int(_ps(pid, "rss")) * 1024


def parse_cpu_time(text: str) -> float:
    """Seconds in the ``[[dd-]hh:]mm:ss[.cc]`` that ps prints."""
    days, _, clock = text.strip().rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + (int(days) * 86_400 if days else 0)


def _ps(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
