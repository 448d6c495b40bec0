"""KV files as the daemon sees them: whose directory it is, and what must go from it. Blocks; used in the daemon.

Whatever is removed here, a worker that runs meanwhile finds it gone and goes on without.
"""

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from superfluid.kvfiles.names import KvName, parse_name

_OWNER_FILE: Final = "store-id"


def claim_directory(directory: Path, store_id: bytes, *, is_kept: bool) -> None:
    """Before the first worker: makes the directory that of this session store, whose sessions own the files.

    Files of another store, which numbers its sessions alike, are removed; all are if none are to be kept.
    Raises OSError.
    """
    marker = directory / _OWNER_FILE
    if not is_kept:
        _remove(directory, lambda _: True)
        marker.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            directory.rmdir()  # unless something else is in it
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not marker.exists() or marker.read_text(encoding="ascii", errors="replace") != store_id.hex():
        _remove(directory, lambda _: True)
        marker.write_text(store_id.hex(), encoding="ascii")
        marker.chmod(0o600)


def erase_files(directory: Path, owners: Collection[int]) -> None:
    """Removes the files of erased sessions, unfinished ones too. Raises OSError."""
    wanted = set(owners)
    _remove(directory, lambda name: name.owner in wanted)


def _remove(directory: Path, is_wanted: Callable[[KvName], bool]) -> None:
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        name = parse_name(path.name)
        if name is not None and is_wanted(name) and not (path.is_dir() and not path.is_symlink()):
            path.unlink(missing_ok=True)
