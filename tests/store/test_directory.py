"""The sessions directory: private, and one server's at a time."""

import os
from pathlib import Path

import pytest

from superfluid.errors import StoreError
from superfluid.store.directory import SessionsDirectory


def test_directory_is_made_with_its_parents_for_its_owner_only(tmp_path: Path) -> None:
    directory = SessionsDirectory(tmp_path / "a" / "sessions")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.store_path.parent == directory.path
    directory.close()


def test_lock_names_its_owner_and_is_free_when_it_is_given_back(tmp_path: Path) -> None:
    first = SessionsDirectory(tmp_path)
    with pytest.raises(StoreError, match=f"another server \\(process {os.getpid()}\\).*--sessions"):
        SessionsDirectory(tmp_path)
    first.close()
    second = SessionsDirectory(tmp_path)
    second.close()


def test_directory_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=f"the sessions directory {tmp_path}/file/sessions cannot be used"):
        SessionsDirectory(tmp_path / "file" / "sessions")
