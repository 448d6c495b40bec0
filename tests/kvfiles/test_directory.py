"""A directory of KV files: private, whole files only, every doubt a miss, the oldest go first."""

import os
import socket
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import xxhash
from tests.fixtures.kv_files import BOTH, KEY, stream

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.directory import DamagedFileError, DiskFullError, KvDirectory, TooLargeError
from superfluid.kvfiles.format import KvHeader, KvKey, Tokens, encode
from superfluid.kvfiles.names import KvName, parse_name

STATE = bytes(1000)
DEAD_PID = 2**22 + 1


def opened(
    path: Path, budgets: Mapping[ParkKind, int | None] = BOTH, *, free: list[int] | None = None, reserve: int = 0
) -> KvDirectory:
    room = free or [10**12]
    directory = KvDirectory(path, budgets, free_bytes=lambda _: room[0], reserve_bytes=reserve)
    directory.open()
    return directory


def put(
    directory: KvDirectory,
    tokens: Tokens,
    *,
    owner: int | None = 1,
    kind: ParkKind = ParkKind.SESSION,
    key: KvKey = KEY,
    used: int | None = None,
) -> str:
    header, parts = encode(key, kind, owner, tokens, STATE, created_unix=0.0)
    name = KvName(kind, key.digest(), header.token_digest.hex(), owner)
    directory.write(name, parts)
    if used is not None:
        os.utime(directory.path / str(name), (used, used))
    return str(name)


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = opened(tmp_path / "kv")
    name = put(directory, stream(1, 10))
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "kv" / name).stat().st_mode) == 0o600


def test_read_gives_what_was_written_and_marks_it_as_used(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    name = put(directory, stream(1, 10), used=1000)
    assert directory.read(name, stream(1, 10)).tobytes() == STATE
    assert directory.read(name, stream(1, 10), room_bytes=7)[7:].tobytes() == STATE
    assert (tmp_path / name).stat().st_mtime > 1000


@pytest.mark.parametrize("place", [0, 20, 60, 400, -1])
def test_read_of_a_damaged_file_is_refused(tmp_path: Path, place: int) -> None:
    directory = opened(tmp_path)
    name = put(directory, stream(1, 10))
    data = bytearray((tmp_path / name).read_bytes())
    data[place] ^= 4
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DamagedFileError):
        directory.read(name, stream(1, 10))


def test_read_for_other_tokens_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    name = put(directory, stream(1, 10))
    with pytest.raises(DamagedFileError):
        directory.read(name, stream(2, 10))


def test_find_gives_intact_files_of_the_key_and_deletes_damaged_ones(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    newer = put(directory, stream(1, 10), used=2000)
    older = put(directory, stream(2, 20_000), kind=ParkKind.REQUEST, owner=None, used=1000)
    foreign = put(directory, stream(3, 10), key=KvKey("other", "state"))
    cut = put(directory, stream(4, 10))
    (tmp_path / cut).write_bytes((tmp_path / cut).read_bytes()[:-1])
    renamed = put(directory, stream(5, 10))
    parsed = parse_name(renamed)
    assert parsed is not None
    (tmp_path / renamed).rename(tmp_path / str(parsed._replace(owner=9)))
    directory = opened(tmp_path)
    found, damaged = directory.find(KEY.digest())
    assert [(file.name, file.kind, file.owner, len(file.tokens)) for file in found] == [
        (older, ParkKind.REQUEST, None, 20_000),
        (newer, ParkKind.SESSION, 1, 10),
    ]
    assert damaged == 2
    assert names(tmp_path) == {newer, older, foreign}


def test_open_deletes_what_a_writer_left_and_kinds_that_are_not_kept(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    kept = put(directory, stream(1, 10))
    put(directory, stream(2, 10), kind=ParkKind.REQUEST)
    parsed = parse_name(kept)
    assert parsed is not None
    # In a container the numbers of the last run are soon those of other processes, or this one's.
    for writer in (DEAD_PID, os.getpid(), os.getppid()):
        (tmp_path / str(parsed._replace(writer=writer))).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    opened(tmp_path, {ParkKind.SESSION: None})
    assert names(tmp_path) == {kept, "notes.txt"}


def test_sweep_removes_the_least_recently_used_of_a_kind_over_its_budget(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    sizes = []
    for used in range(1, 6):
        name = put(directory, stream(used, 10), used=used * 100)
        sizes.append((tmp_path / name).stat().st_size)
    requests = {put(directory, stream(50 + used, 10), kind=ParkKind.REQUEST, used=1) for used in range(3)}
    directory = opened(tmp_path, {ParkKind.SESSION: sum(sizes[:2]), ParkKind.REQUEST: None})
    directory.read(put(directory, stream(1, 10), used=100), stream(1, 10))
    directory.sweep()
    left = [file for file in directory.find(KEY.digest())[0] if file.kind is ParkKind.SESSION]
    assert [file.tokens.tolist() for file in left] == [stream(5, 10).tolist(), stream(1, 10).tolist()]
    assert len(directory.take_removed()) == 3
    assert requests < names(tmp_path)
    assert directory.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_write_that_the_disk_has_no_room_for_makes_some_or_is_refused(tmp_path: Path) -> None:
    free = [10_000]
    directory = opened(tmp_path, free=free, reserve=5_000)
    oldest = put(directory, stream(1, 10), used=100)
    put(directory, stream(2, 10))
    free[0] = 5_500
    put(directory, stream(3, 10))
    assert directory.take_removed() == (oldest,)
    free[0] = 100
    before = names(tmp_path)
    with pytest.raises(DiskFullError):
        put(directory, stream(4, 10))
    assert names(tmp_path) == before


def test_write_over_the_whole_budget_is_refused_and_nothing_is_removed_for_it(tmp_path: Path) -> None:
    directory = opened(tmp_path, {ParkKind.SESSION: 1500})
    put(directory, stream(1, 10))
    with pytest.raises(TooLargeError):
        put(directory, stream(2, 1000))
    assert len(names(tmp_path)) == 1


def test_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    name = KvName(ParkKind.SESSION, KEY.digest(), "0" * 32, 1)
    (tmp_path / str(name)).mkdir()
    with pytest.raises(OSError, match="directory"):
        directory.write(name, [b"state"])
    assert names(tmp_path) == {str(name)}


def test_write_into_a_directory_that_was_emptied_makes_it_again(tmp_path: Path) -> None:
    directory = opened(tmp_path / "kv")
    name = put(directory, stream(1, 10))
    (tmp_path / "kv" / name).unlink()
    (tmp_path / "kv").rmdir()
    with pytest.raises(FileNotFoundError):
        directory.read(name, stream(1, 10))
    assert put(directory, stream(2, 10)) in names(tmp_path / "kv")


def test_erase_removes_all_files_of_the_sessions_and_no_other(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    mine = {put(directory, stream(seed, 10), owner=7, kind=kind) for seed, kind in enumerate(BOTH)}
    other = {put(directory, stream(3, 10), owner=8), put(directory, stream(4, 10), owner=None)}
    unfinished = parse_name(next(iter(mine)))
    assert unfinished is not None
    (tmp_path / str(unfinished._replace(writer=DEAD_PID))).write_bytes(b"half")
    assert set(directory.erase([7, 9])) == mine
    assert names(tmp_path) == other


def test_read_of_a_file_that_was_put_in_the_place_of_another_models_is_refused(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    ours = put(directory, stream(1, 10))
    foreign = put(directory, stream(1, 10), key=KvKey("other", "state"))
    (tmp_path / foreign).rename(tmp_path / ours)
    with pytest.raises(DamagedFileError, match="something else"):
        directory.read(ours, stream(1, 10))


@pytest.mark.parametrize("count", ["tokens", "state"])
def test_file_that_says_it_is_huge_is_damaged_and_takes_no_memory(tmp_path: Path, count: str) -> None:
    directory = opened(tmp_path)
    name = put(directory, stream(1, 10))
    header, parts = encode(KEY, ParkKind.SESSION, 1, stream(1, 10), STATE, created_unix=0.0)
    (tmp_path / name).write_bytes(_lie(header, [bytes(part) for part in parts], count))
    with pytest.raises(DamagedFileError, match=r"ends in|bytes"):
        directory.read(name, stream(1, 10))
    assert opened(tmp_path).find(KEY.digest()) == ([], 1)


def _lie(header: KvHeader, parts: list[bytes], count: str) -> bytes:
    """The file with a header that is sound but for what it counts."""
    change = {"tokens": 2**60} if count == "tokens" else {"state_bytes": 2**60}
    encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, **change))
    head = parts[0][:8] + struct.pack("<I", len(encoded)) + encoded
    return head + xxhash.xxh3_128_digest(head) + parts[1] + parts[2]


@pytest.mark.parametrize("kind", ["directory", "pipe", "link", "dangling link", "socket"])
def test_what_is_no_file_is_never_read_nor_followed_and_keeps_nothing_from_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    outside = tmp_path / "outside"
    directory = opened(tmp_path / "kv")
    name = put(directory, stream(1, 10))
    path = tmp_path / "kv" / name
    path.rename(outside)
    before = outside.stat()
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(outside)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case _:
            with socket.socket(socket.AF_UNIX) as bound:
                monkeypatch.chdir(path.parent)
                bound.bind(name)
    with pytest.raises((DamagedFileError, OSError)):
        directory.read(name, stream(1, 10))
    fresh = opened(tmp_path / "kv", {ParkKind.SESSION: 10**6, ParkKind.REQUEST: 0})
    other = put(fresh, stream(2, 10))
    assert [file.name for file in fresh.find(KEY.digest())[0]] == [other]
    assert fresh.erase([1]) == [other] if kind == "directory" else set(fresh.erase([1])) == {other, name}
    assert (outside.stat().st_size, outside.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_file_that_cannot_be_read_does_not_keep_the_others_from_being_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    closed, sound = put(directory, stream(1, 10)), put(directory, stream(2, 10))

    def open_most(path: os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        if os.fspath(path).endswith(closed):
            raise PermissionError(13, "Permission denied")
        return really_open(path, flags, mode)

    really_open = os.open
    monkeypatch.setattr(os, "open", open_most)
    found, damaged = directory.find(KEY.digest())
    assert ([file.name for file in found], damaged) == ([sound], 1)
    assert names(tmp_path) == {closed, sound}


def test_damaged_file_that_cannot_be_deleted_does_not_keep_the_others_from_being_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(tmp_path)
    cut, sound = put(directory, stream(1, 10)), put(directory, stream(2, 10))
    (tmp_path / cut).write_bytes(b"SFKV")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    found, damaged = opened(tmp_path).find(KEY.digest())
    assert ([file.name for file in found], damaged) == ([sound], 1)


def test_clock_that_goes_back_does_not_make_the_newest_file_the_oldest(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    tomorrow = time.time_ns() + 86_400 * 10**9
    old = [put(directory, stream(seed, 10)) for seed in (1, 2)]
    for file in old:
        os.utime(tmp_path / file, ns=(tomorrow, tomorrow))
    size = (tmp_path / old[0]).stat().st_size
    directory = opened(tmp_path, {ParkKind.SESSION: 2 * size})
    directory.read(old[0], stream(1, 10))
    newest = put(directory, stream(3, 10))
    directory.sweep()
    assert names(tmp_path) == {old[0], newest}
