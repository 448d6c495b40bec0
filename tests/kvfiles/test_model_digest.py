"""The digest of a model file: of every byte, and computed once for as long as nobody touches the file."""

import hashlib
import os
from pathlib import Path

import pytest

from superfluid.kvfiles.model_digest import CACHE_FILE, files_digest


def model(tmp_path: Path, data: bytes = b"weights" * 1000, name: str = "model.gguf") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_digest_tells_files_apart_that_differ_in_one_byte_anywhere(tmp_path: Path) -> None:
    data = bytearray(100_000)
    digests = {files_digest([model(tmp_path, bytes(data))], tmp_path)}
    for place in (0, 50_000, 99_999):
        changed = data[:]
        changed[place] = 1
        digests.add(files_digest([model(tmp_path, bytes(changed))], tmp_path))
    assert len(digests) == 4


def test_digest_of_an_untouched_file_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path)
    first = files_digest([path], tmp_path)
    monkeypatch.setattr(hashlib, "sha256", _only_over_digests(first))
    assert files_digest([path], tmp_path) == first
    assert ((tmp_path / CACHE_FILE).stat().st_mode & 0o777) == 0o600


def test_digest_of_a_file_whose_time_was_set_back_is_computed_again(tmp_path: Path) -> None:
    path = model(tmp_path)
    before = path.stat()
    first = files_digest([path], tmp_path)
    path.write_bytes(b"WEIGHTS" * 1000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files_digest([path], tmp_path) != first


@pytest.mark.parametrize("cache", [b"", b"{", b'{"a": 1}', b"[]"])
def test_digest_with_a_damaged_memory_is_computed_again(tmp_path: Path, cache: bytes) -> None:
    path = model(tmp_path)
    first = files_digest([path], tmp_path)
    (tmp_path / CACHE_FILE).write_bytes(cache)
    assert files_digest([path], tmp_path) == first


def test_digest_of_a_split_model_depends_on_all_parts_and_their_order(tmp_path: Path) -> None:
    one, two = model(tmp_path, b"one", "1"), model(tmp_path, b"two", "2")
    assert len({files_digest(files, tmp_path) for files in ([one], [two], [one, two], [two, one])}) == 4


def test_digest_where_it_cannot_be_remembered_is_given_all_the_same(tmp_path: Path) -> None:
    path = model(tmp_path)
    assert files_digest([path], tmp_path / "is-not-there") == files_digest([path], tmp_path)


class _only_over_digests:  # noqa: N801 (stands for a function)
    """``sha256`` that refuses the file's bytes: it may only put the digests together."""

    def __init__(self, expected: str) -> None:
        self._expected = expected

    def __call__(self, data: bytes) -> "_only_over_digests":
        return self

    def hexdigest(self) -> str:
        return self._expected
