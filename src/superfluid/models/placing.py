"""Putting finished files where readers look for them: whole or not at all, also after a power cut. In the daemon."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

_CHUNK_BYTES = 1 << 20


class Hasher(Protocol):
    """The part of hashlib's objects that is used here."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def place_file(finished: Path, target: Path) -> None:
    """Renames ``finished`` to ``target``, both on one file system, after syncing its content; then syncs the name."""
    with finished.open("rb") as file:
        os.fsync(file.fileno())
    finished.replace(target)
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_stream(source: IO[bytes], target: IO[bytes], on_bytes: Callable[[int], None]) -> str:
    """Copies to the end of ``source``; returns the SHA-256 of what was copied. ``on_bytes`` gets the running count."""
    hasher = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK_BYTES):
        target.write(chunk)
        hasher.update(chunk)
        done += len(chunk)
        on_bytes(done)
    return hasher.hexdigest()


def hash_file(path: Path, hasher: Hasher) -> int:
    """Feeds the whole file to ``hasher``; returns its length in bytes."""
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            done += len(chunk)
    return done
