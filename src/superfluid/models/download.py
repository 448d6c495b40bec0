"""Downloading one file over HTTP: resumed by range after a cut, checked against its digest. In the daemon."""

import errno
import hashlib
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx
from msgspec import Struct

from superfluid.errors import PullError
from superfluid.models.placing import Hasher, hash_file
from superfluid.models.progress import PullProgress, format_bytes

_LONG_CHECK_BYTES = 2_000_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_SHA1 = re.compile(r"[0-9a-f]{40}")
_RETRIED_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """``attempts`` in a row that bring nothing new end a download; between them, ``sleep`` gets growing pauses."""

    attempts: int = 5
    first_pause_seconds: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    def pause(self, failures: int) -> None:
        self.sleep(min(self.first_pause_seconds * 2 ** (failures - 1), 30.0))


PATIENT = RetryPolicy()


class RemoteFile(Struct, frozen=True, kw_only=True):
    """``digest`` is a SHA-256, a git blob SHA-1 (needs ``size_bytes``), or something that cannot be checked."""

    url: str
    label: str
    size_bytes: int | None
    digest: str


class _CutError(Exception):
    """The connection or the server failed in a way that another attempt may mend."""


def download(
    client: httpx.Client, remote: RemoteFile, partial: Path, progress: PullProgress, retry: RetryPolicy = PATIENT
) -> None:
    """Makes ``partial`` the whole file, continuing with what it holds. Blocks.

    On success its content has been checked. Raises PullError: after a lost connection ``partial`` stays for the next
    time; after a wrong digest it is deleted.
    """
    partial.parent.mkdir(parents=True, exist_ok=True)
    _require_room(remote, partial)
    progress.begin(remote.label, remote.size_bytes)
    try:
        _fetch_all(client, remote, partial, progress, retry)
    except OSError as error:
        raise _disk_error(error, partial) from error
    finally:
        progress.end()


def _fetch_all(
    client: httpx.Client, remote: RemoteFile, partial: Path, progress: PullProgress, retry: RetryPolicy
) -> None:
    failures = 0
    while True:
        before = _length(partial)
        try:
            _fetch_rest(client, remote, partial, progress)
            break
        except _CutError as cut:
            failures = 1 if _length(partial) > before else failures + 1
            if failures >= retry.attempts:
                kept = format_bytes(_length(partial))
                raise PullError(
                    f"{remote.label}: {cut}, {retry.attempts} times in a row; {kept} are kept, and the same command "
                    f"goes on from there"
                ) from cut
            progress.note(f"{remote.label}: {cut}; trying again")
            retry.pause(failures)
    if _length(partial) > _LONG_CHECK_BYTES:
        progress.note(f"checking {remote.label}")
    _verify(remote, partial)


def _fetch_rest(client: httpx.Client, remote: RemoteFile, partial: Path, progress: PullProgress) -> None:
    start = _length(partial)
    if remote.size_bytes is not None and start >= remote.size_bytes:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with client.stream("GET", remote.url, headers=headers, follow_redirects=True) as response:
            if response.status_code == 416:
                return
            _check_status(response, remote)
            # Not every server honours the range; one that sends everything starts the file over.
            resumed = response.status_code == 206
            with partial.open("ab" if resumed else "wb") as file:
                _copy(response, file, start if resumed else 0, progress)
    except httpx.HTTPError as error:
        raise _CutError(f"the connection was lost ({type(error).__name__})") from error
    if remote.size_bytes is not None and _length(partial) < remote.size_bytes:
        raise _CutError("the server closed the connection early")


def _copy(response: httpx.Response, file: BinaryIO, done: int, progress: PullProgress) -> None:
    progress.update(done)
    for chunk in response.iter_raw():
        file.write(chunk)
        done += len(chunk)
        progress.update(done)


def _check_status(response: httpx.Response, remote: RemoteFile) -> None:
    status = response.status_code
    if status in _RETRIED_STATUS:
        raise _CutError(f"the server answered {status}")
    if status not in (200, 206):
        raise PullError(f"{remote.label}: the server answered {status} {response.reason_phrase}")


def _verify(remote: RemoteFile, partial: Path) -> None:
    hasher = _hasher(remote)
    length = _length(partial) if hasher is None else hash_file(partial, hasher)
    if remote.size_bytes is not None and length != remote.size_bytes:
        partial.unlink()
        raise PullError(
            f"{remote.label} should have {remote.size_bytes:,} bytes but came with {length:,}; it was dropped"
        )
    if hasher is not None and hasher.hexdigest() != remote.digest:
        partial.unlink()
        raise PullError(
            f"{remote.label} came with digest {hasher.hexdigest()}, not {remote.digest}; it was dropped, try again"
        )


def _hasher(remote: RemoteFile) -> Hasher | None:
    if _SHA256.fullmatch(remote.digest):
        return hashlib.sha256()
    if _GIT_SHA1.fullmatch(remote.digest) and remote.size_bytes is not None:
        return hashlib.sha1(b"blob %d\0" % remote.size_bytes, usedforsecurity=False)
    return None


def _require_room(remote: RemoteFile, partial: Path) -> None:
    if remote.size_bytes is None:
        return
    missing = remote.size_bytes - _length(partial)
    free = shutil.disk_usage(partial.parent).free
    if missing > free:
        raise PullError(
            f"{remote.label} needs {format_bytes(missing)} more, but {partial.parent} has {format_bytes(free)} left"
        )


def _disk_error(error: OSError, partial: Path) -> PullError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PullError(f"no room left at {partial.parent}; make some, and the same command goes on from there")
    return PullError(f"{partial} cannot be written: {error.strerror or error}")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
