"""A directory of KV files: written whole or not at all, read with every doubt resolved as a miss, swept oldest first.

Blocks, and raises OSError: it belongs to the threads of ``kvfiles/service.py``. Others may empty the directory at any
time, and put into it what they like: only plain files of our names are ours, and no link is followed. A file's
modification time is when it was last of use; where the clock goes back it still rises from file to file.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.format import Bytes, KvFormatError, KvHead, Tokens, check_state, decode_head, head_bytes
from superfluid.kvfiles.names import KvName, parse_name

FREE_RESERVE_BYTES: Final = 1 << 30
"""What is left free on the disk: the sessions themselves are written to it too."""
_HEAD_READ_BYTES: Final = 1 << 16


class TooLargeError(Exception):
    """The file alone is over the budget of its kind."""


class DiskFullError(Exception):
    """The file would take from the disk's reserve, even with all other files gone."""


class DamagedFileError(Exception):
    """The file is not what was once written under its name."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of this process's key, by its head."""

    name: str
    kind: ParkKind
    owner: int | None
    tokens: Tokens
    size_bytes: int


@dataclass(slots=True)
class _Entry:
    name: KvName
    size_bytes: int
    used_ns: int


def _free_bytes(path: Path) -> int:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


class KvDirectory:
    """``budgets`` holds the kinds that are kept at all, and how much of each (``None``: no bound)."""

    def __init__(
        self,
        path: Path,
        budgets: Mapping[ParkKind, int | None],
        *,
        free_bytes: Callable[[Path], int] = _free_bytes,
        reserve_bytes: int = FREE_RESERVE_BYTES,
    ) -> None:
        self.path = path
        self._budgets = budgets
        self._free_bytes = free_bytes
        self._reserve_bytes = reserve_bytes
        self._entries: dict[str, _Entry] = {}
        self._used_bytes = dict.fromkeys(budgets, 0)
        self._removed: list[str] = []
        self._newest_ns = 0

    @property
    def size_bytes(self) -> int:
        """Of all KV files, whatever their key. May be asked by any thread."""
        return sum(self._used_bytes.values())

    def take_removed(self) -> tuple[str, ...]:
        """What had to go to make room since the last call."""
        removed, self._removed = self._removed, []
        return tuple(removed)

    def open(self) -> None:
        """Makes the directory, private, and clears it of what nobody will finish or want: unfinished files, files of
        kinds that are not kept.

        A directory has one writer at a time. The number of one that is gone says nothing, since in a container it is
        soon somebody else's; one that a broken disk keeps from dying finds its file gone and writes none.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for name, parsed in self._list():
            if parsed.writer is not None or parsed.kind not in self._budgets:
                with contextlib.suppress(OSError):
                    self.remove(name)
        self._relist()

    def find(self, key: str) -> tuple[list[FoundFile], int]:
        """The files of a key, least recently used first, and how many were of no use: the damaged ones are deleted,
        those that cannot be read stay until the space is needed."""
        found: list[FoundFile] = []
        damaged = 0
        for name, entry in self._oldest_first():
            if entry.name.key != key:
                continue
            try:
                found.append(self._look_at(name))
            except FileNotFoundError:
                self._forget(name)
            except DamagedFileError:
                damaged += 1
                with contextlib.suppress(OSError):
                    self.remove(name)
            except OSError:
                damaged += 1
        return found, damaged

    def write(self, name: KvName, parts: Sequence[bytes | memoryview]) -> int:
        """Puts the file in place when all of it is on the disk; its size. Raises TooLargeError, DiskFullError or
        OSError, and leaves nothing behind then."""
        size = sum(len(part) for part in parts)
        self._make_room(name.kind, size)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path / str(name)
        temporary = self.path / str(name._replace(writer=os.getpid()))
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            try:
                for part in parts:
                    _write_all(descriptor, part)
                used_ns = self._mark_used(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._sync()
        self._forget(str(name))
        self._entries[str(name)] = _Entry(name, size, used_ns)
        self._used_bytes[name.kind] += size
        return size

    def read(self, name: str, tokens: Tokens, *, room_bytes: int = 0) -> Bytes:
        """The state of a file that must hold exactly ``tokens``, behind ``room_bytes`` of no meaning. Marks it as used.
        For the reading thread.

        Raises FileNotFoundError if it is gone, DamagedFileError for anything but what was written.
        """
        descriptor = _open_plain_file(self.path / name)
        try:
            head = _read_head(descriptor)
            _require_name(name, head)
            if len(head.tokens) != len(tokens) or (head.tokens != tokens).any():
                raise DamagedFileError(f"{name} holds other tokens than it did")
            state = np.empty(room_bytes + head.header.state_bytes, np.uint8)
            done = _read_into(descriptor, state[room_bytes:], head.state_offset)
            try:
                check_state(head.header, state[room_bytes : room_bytes + done])
            except KvFormatError as error:
                raise DamagedFileError(str(error)) from error
            with contextlib.suppress(OSError):  # on a disk that cannot be written
                self._mark_used(descriptor)
            return state
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """It may be gone already."""
        (self.path / name).unlink(missing_ok=True)
        self._forget(name)

    def sweep(self) -> None:
        """Removes the least recently used files over the budgets, and those that the disk's reserve needs."""
        if any(self._excess_bytes(kind) > 0 for kind in self._budgets):
            self._relist()
        for kind in self._budgets:
            self._remove_oldest(self._excess_bytes(kind), kind)
        self._remove_oldest(self._missing_bytes(0), None)

    def erase(self, owners: Collection[int]) -> list[str]:
        """Removes every file of these sessions, unfinished ones too. The names of the finished ones."""
        wanted = set(owners)
        removed = []
        for name, parsed in self._list():
            if parsed.owner in wanted:
                self.remove(name)
                if parsed.writer is None:
                    removed.append(name)
        self._sync()
        return removed

    def _look_at(self, name: str) -> FoundFile:
        descriptor = _open_plain_file(self.path / name)
        try:
            head = _read_head(descriptor)
        finally:
            os.close(descriptor)
        _require_name(name, head)
        return FoundFile(name, head.header.kind, head.header.owner, head.tokens, head.size_bytes)

    def _mark_used(self, descriptor: int) -> int:
        """The time that the file then has: now, or just behind the newest there is if the clock went back."""
        os.utime(descriptor)
        used_ns = os.fstat(descriptor).st_mtime_ns
        if used_ns <= self._newest_ns:
            used_ns = self._newest_ns + 1
            os.utime(descriptor, ns=(used_ns, used_ns))
        self._newest_ns = used_ns
        return used_ns

    def _make_room(self, kind: ParkKind, size: int) -> None:
        budget = self._budgets[kind]
        if budget is not None and size > budget:
            raise TooLargeError(f"{size} bytes are more than the budget of {budget}")
        missing = self._missing_bytes(size)
        if missing > self.size_bytes:
            raise DiskFullError("the disk is full")
        self._remove_oldest(missing, None)

    def _missing_bytes(self, size: int) -> int:
        """What must be freed so that ``size`` more leave the disk its reserve."""
        return size + self._reserve_bytes - self._free_bytes(self._nearest())

    def _nearest(self) -> Path:
        return self.path if self.path.exists() else self.path.parent

    def _excess_bytes(self, kind: ParkKind) -> int:
        budget = self._budgets[kind]
        return 0 if budget is None else self._used_bytes[kind] - budget

    def _remove_oldest(self, size: int, kind: ParkKind | None) -> None:
        """At least ``size`` bytes of one kind, or of any."""
        for name, entry in self._oldest_first() if size > 0 else ():
            if size <= 0:
                return
            if kind in (None, entry.name.kind):
                self.remove(name)
                self._removed.append(name)
                size -= entry.size_bytes

    def _forget(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self._used_bytes[entry.name.kind] -= entry.size_bytes

    def _oldest_first(self) -> list[tuple[str, _Entry]]:
        return sorted(self._entries.items(), key=lambda item: (item[1].used_ns, item[0]))

    def _relist(self) -> None:
        entries: dict[str, _Entry] = {}
        for name, parsed in self._list():
            if parsed.writer is not None:
                continue
            try:
                facts = (self.path / name).lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(facts.st_mode):
                entries[name] = _Entry(parsed, facts.st_size, facts.st_mtime_ns)
        self._entries = entries
        self._newest_ns = max((entry.used_ns for entry in entries.values()), default=0)
        self._used_bytes = dict.fromkeys(self._budgets, 0)
        for entry in entries.values():
            self._used_bytes[entry.name.kind] += entry.size_bytes

    def _list(self) -> list[tuple[str, KvName]]:
        try:
            with os.scandir(self.path) as found:
                names = [entry.name for entry in found if not entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return [(name, parsed) for name in names if (parsed := parse_name(name)) is not None]

    def _sync(self) -> None:
        """What was renamed or removed here is so after a power cut too."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _require_name(name: str, head: KvHead) -> None:
    """The name is made from what is in the file, its key too."""
    header = head.header
    if str(KvName(header.kind, header.key.digest(), header.token_digest.hex(), header.owner)) != name:
        raise DamagedFileError(f"{name} holds something else")


def _open_plain_file(path: Path) -> int:
    """Raises DamagedFileError for anything that is no file, without waiting for it: a pipe has no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link, or a socket
            raise DamagedFileError(f"{path.name} is no file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedFileError(f"{path.name} is no file")
    return descriptor


def _read_head(descriptor: int) -> KvHead:
    """Of a file that is as long as its header says: nobody is to make room for what is not there."""
    size = os.fstat(descriptor).st_size
    try:
        data = os.pread(descriptor, _HEAD_READ_BYTES, 0)
        # The header may be cut by the first read: then only the second tells how many tokens follow.
        for _ in range(2):
            needed = head_bytes(data)
            if needed > size:
                raise DamagedFileError("the file ends in its head")
            if needed > len(data):
                data = _read_all(descriptor, needed, 0)
        head = decode_head(data)
    except KvFormatError as error:
        raise DamagedFileError(str(error)) from error
    if head.size_bytes != size:
        raise DamagedFileError(f"the file has {size} of {head.size_bytes} bytes")
    return head


def _read_all(descriptor: int, count: int, offset: int) -> bytes:
    """Fewer bytes only at the end of the file."""
    data = os.pread(descriptor, count, offset)
    if len(data) == count or not data:
        return data
    parts = [data]
    done = len(data)
    while done < count and (part := os.pread(descriptor, count - done, offset + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _read_into(descriptor: int, array: Bytes, offset: int) -> int:
    """How many bytes there were: fewer than wanted only at the end of the file."""
    view = array.data.cast("B")
    done = 0
    os.lseek(descriptor, offset, os.SEEK_SET)
    while done < len(view) and (count := os.readv(descriptor, [view[done:]])):
        done += count
    return done


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
