"""How much memory may still be taken: by the machine, and by the control groups that this process lives in. Blocks."""

from pathlib import Path
from typing import Final

_NO_BOUND: Final = 1 << 60
"""What the first version of control groups says where there is none is a little below 2^63."""
_FILES: Final = {
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}
"""By version: the bound, what is used, and what of that are files that were read, which give way."""


def available_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory to be had without swapping; ``None`` if the system does not tell. ``root`` is where ``proc`` and ``sys``
    are."""
    bounds = [_machine_bytes(root / "proc/meminfo"), *_group_bytes(root)]
    return min((bound for bound in bounds if bound is not None), default=None)


def _machine_bytes(path: Path) -> int | None:
    kib = _fields(path).get("MemAvailable:")
    return None if kib is None else kib * 1024


def _group_bytes(root: Path) -> list[int | None]:
    """Of each group, from the process's own up to the outermost that can be seen: every one of them binds.

    In a container the path may be that on the host, of which nothing is to be seen; then the outermost is its own.
    """
    bounds: list[int | None] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if version == 2 else "memory")
        group = top / path.lstrip("/")
        inner = [group, *group.parents][: len(group.parts) - len(top.parts)]
        bounds.extend(_bytes_of_group(directory, version) for directory in (*inner, top))
    return bounds


def _bytes_of_group(directory: Path, version: int) -> int | None:
    bound_file, used_file, reclaimable = _FILES[version]
    bound, used = _text(directory / bound_file).strip(), _text(directory / used_file).strip()
    if not bound.isdecimal() or not used.isdecimal() or int(bound) >= _NO_BOUND:
        return None
    files = _fields(directory / "memory.stat")
    return max(0, int(bound) - max(0, int(used) - sum(files.get(name, 0) for name in reclaimable)))


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a whole number; others are passed over."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
