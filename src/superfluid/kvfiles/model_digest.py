"""The digest of a whole model file, remembered by what the file system says of the file. Blocks; runs in the worker.

Samples tell releases apart, but not two fine-tunes that differ in one layer, and a state of the wrong one would be
taken without a word. So every byte counts, once: a file that has not been touched since is known.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

CACHE_FILE: Final = "digests.json"
_BLOCK_BYTES: Final = 1 << 22
_MOST_REMEMBERED: Final = 64

_logger = logging.getLogger("superfluid_daemon::scheduler")


class _Known(msgspec.Struct, frozen=True):
    """Size, inode and both times: a file that was changed and set back in time still differs in the last of them."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int
    digest: str


def files_digest(files: Sequence[Path], directory: Path) -> str:
    """Of all bytes of ``files`` in their order, as hex; each is remembered in ``directory``. Raises OSError."""
    cache = directory / CACHE_FILE
    known = _read(cache)
    digests = []
    for file in files:
        path = str(file.resolve())
        entry = _entry(file, known.get(path))
        if known.pop(path, None) != entry:
            _write(cache, {**known, path: entry})
        known[path] = entry
        digests.append(entry.digest)
    return hashlib.sha256("|".join(digests).encode()).hexdigest()


def _entry(file: Path, known: _Known | None) -> _Known:
    with file.open("rb", buffering=0) as stream:
        before = os.fstat(stream.fileno())
        facts = (before.st_size, before.st_ino, before.st_mtime_ns, before.st_ctime_ns)
        if known is not None and (known.size, known.inode, known.modified_ns, known.changed_ns) == facts:
            return known
        digest = hashlib.sha256()
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return _Known(*facts, digest.hexdigest())


def _read(cache: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode(cache.read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.MsgspecError):
        return {}


def _write(cache: Path, known: dict[str, _Known]) -> None:
    """Where that fails, the digest is computed again next time."""
    newest = dict(list(known.items())[-_MOST_REMEMBERED:])
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(msgspec.json.encode(newest))
        temporary.chmod(0o600)
        temporary.replace(cache)
    except OSError as error:
        _logger.warning("the digest of the model cannot be remembered: %s", error.strerror)
