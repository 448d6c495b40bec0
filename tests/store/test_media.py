import errno
import hashlib
import os
from pathlib import Path

import pytest

from superfluid.errors import StoreUnavailableError
from superfluid.store.media import MediaPool, Swept, is_blob_name

CONTENT = b"\x89PNG and so on"
BLOB = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def pool(tmp_path: Path) -> MediaPool:
    return MediaPool(tmp_path / "media")


def names(pool: MediaPool) -> list[str]:
    return sorted(os.listdir(pool.directory)) if pool.directory.exists() else []


def test_blob_is_stored_under_its_digest_for_its_owner_alone(pool: MediaPool) -> None:
    assert pool.put(CONTENT) == BLOB
    path = pool.directory / BLOB
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o600
    assert pool.directory.stat().st_mode & 0o777 == 0o700
    assert pool.get(BLOB) == CONTENT


def test_blob_stored_twice_is_one_file_that_is_not_touched(pool: MediaPool) -> None:
    pool.put(CONTENT)
    before = (pool.directory / BLOB).stat()
    assert pool.put(CONTENT) == BLOB
    after = (pool.directory / BLOB).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(pool) == [BLOB]


def test_empty_content_is_a_blob_like_any_other(pool: MediaPool) -> None:
    assert pool.get(pool.put(b"")) == b""


def test_blob_that_is_not_there_is_none(pool: MediaPool) -> None:
    assert pool.get(BLOB) is None


def test_damaged_blob_is_refused_until_it_is_put_there_again(pool: MediaPool) -> None:
    pool.put(CONTENT)
    (pool.directory / BLOB).write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(StoreUnavailableError, match="damaged"):
        pool.get(BLOB)
    pool.put(CONTENT)
    assert pool.get(BLOB) == CONTENT


def test_what_a_cut_write_left_is_removed_when_the_pool_is_opened(pool: MediaPool) -> None:
    pool.put(CONTENT)
    (pool.directory / ".new-0123").write_bytes(b"half")
    MediaPool(pool.directory)
    assert names(pool) == [BLOB]


def test_sweep_keeps_what_is_named_and_removes_all_else(pool: MediaPool) -> None:
    pool.put(CONTENT)
    other = pool.put(b"other")
    (pool.directory / "stray.txt").write_bytes(b"")
    assert pool.sweep({BLOB, "0" * 64}) == Swept(kept=1, removed=2)
    assert names(pool) == [BLOB]
    assert pool.get(other) is None


def test_sweep_among_some_leaves_the_others_alone(pool: MediaPool) -> None:
    pool.put(CONTENT)
    other, third = pool.put(b"other"), pool.put(b"third")
    assert pool.sweep({other}, among={BLOB, other}) == Swept(kept=1, removed=1)
    assert names(pool) == sorted([other, third])


def test_sweep_of_a_pool_that_was_never_used_finds_nothing(pool: MediaPool) -> None:
    assert pool.sweep(set()) == Swept(0, 0)


def test_write_that_finds_the_disk_full_leaves_nothing_and_says_so(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailableError, match="No space left"):
            pool.put(CONTENT)
    assert names(pool) == []
    assert pool.put(CONTENT) == BLOB


def test_pool_whose_place_is_taken_by_a_file_is_refused_clearly(tmp_path: Path) -> None:
    pool = MediaPool(tmp_path / "media")
    (tmp_path / "media").write_bytes(b"")
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        pool.put(CONTENT)
    with pytest.raises(StoreUnavailableError, match="cannot be listed"):
        pool.sweep(set())


@pytest.mark.parametrize("text", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 65, "../" + "a" * 61, "a" * 64 + "\n"])
def test_name_that_is_none(text: str) -> None:
    assert not is_blob_name(text)
    assert is_blob_name("0123456789abcdef" * 4)
