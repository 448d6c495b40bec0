"""Removes the KV files of erased sessions where no worker does. Blocks; used in the daemon, in a thread."""

from collections.abc import Collection
from pathlib import Path

from superfluid.kvfiles.names import parse_name


def erase_files(directory: Path, owners: Collection[int]) -> None:
    """Unfinished ones too. A worker that runs meanwhile finds them gone. Raises OSError."""
    wanted = set(owners)
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return
    for name in names:
        parsed = parse_name(name)
        if parsed is not None and parsed.owner in wanted:
            (directory / name).unlink(missing_ok=True)
