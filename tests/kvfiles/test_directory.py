"""A directory of KV files: private, whole files only, every doubt a miss, the oldest go first."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fixtures.kv_files import BOTH, KEY, stream

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.directory import DamagedFileError, DiskFullError, KvDirectory, TooLargeError
from superfluid.kvfiles.format import KvKey, Tokens, encode
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


def test_open_deletes_what_a_dead_writer_left_and_kinds_that_are_not_kept(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    kept = put(directory, stream(1, 10))
    put(directory, stream(2, 10), kind=ParkKind.REQUEST)
    parsed = parse_name(kept)
    assert parsed is not None
    (tmp_path / str(parsed._replace(writer=DEAD_PID))).write_bytes(b"half")
    alive = str(parsed._replace(writer=os.getppid()))
    (tmp_path / alive).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    opened(tmp_path, {ParkKind.SESSION: None})
    assert names(tmp_path) == {kept, alive, "notes.txt"}


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
