"""KV files as the daemon sees them: of its own store, and of no session that is not there any more."""

from pathlib import Path

import pytest

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.erasing import claim_directory, erase_files
from superfluid.kvfiles.names import KvName

STORE, OTHER_STORE = bytes(16), bytes(range(16))


def put(directory: Path, owner: int | None, *, writer: int | None = None, kind: ParkKind = ParkKind.SESSION) -> str:
    name = str(KvName(kind, "0" * 16, "a" * 32, owner, writer))
    (directory / name).write_bytes(b"state")
    return name


def states(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if ".kv" in path.name}


def test_claim_makes_a_private_directory_and_keeps_its_own_files(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    claim_directory(directory, STORE, is_kept=True)
    assert (directory.stat().st_mode & 0o777) == 0o700
    name = put(directory, 1)
    claim_directory(directory, STORE, is_kept=True)
    assert states(directory) == {name}


def test_claim_by_another_store_removes_the_files_of_its_namesakes(tmp_path: Path) -> None:
    claim_directory(tmp_path, STORE, is_kept=True)
    put(tmp_path, 1)
    claim_directory(tmp_path, OTHER_STORE, is_kept=True)
    assert states(tmp_path) == set()
    name = put(tmp_path, 1)
    claim_directory(tmp_path, OTHER_STORE, is_kept=True)
    assert states(tmp_path) == {name}


def test_claim_of_files_that_nobody_has_claimed_removes_them(tmp_path: Path) -> None:
    put(tmp_path, 1)
    claim_directory(tmp_path, STORE, is_kept=True)
    assert states(tmp_path) == set()


def test_claim_where_nothing_is_kept_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "kv"
    claim_directory(directory, STORE, is_kept=False)
    assert not directory.exists()
    claim_directory(directory, STORE, is_kept=True)
    put(directory, 1)
    claim_directory(directory, STORE, is_kept=False)
    assert not directory.exists()


@pytest.mark.parametrize("kind", [ParkKind.SESSION, ParkKind.REQUEST])
def test_erase_removes_finished_and_unfinished_files_of_the_sessions_alone(tmp_path: Path, kind: ParkKind) -> None:
    put(tmp_path, 7, kind=kind)
    put(tmp_path, 7, writer=1, kind=kind)
    spared = {put(tmp_path, 8, kind=kind), put(tmp_path, None, kind=kind), put(tmp_path, 0x77, kind=kind)}
    (tmp_path / "notes-7.kv").write_text("not ours")
    erase_files(tmp_path, [7])
    assert states(tmp_path) == {*spared, "notes-7.kv"}


def test_erase_passes_over_a_directory_that_is_called_like_a_file(tmp_path: Path) -> None:
    name = KvName(ParkKind.SESSION, "0" * 16, "1" * 32, 7)
    (tmp_path / str(name)).mkdir()
    (tmp_path / str(name._replace(tokens="2" * 32))).write_bytes(b"state")
    erase_files(tmp_path, [7])
    assert [path.name for path in tmp_path.iterdir()] == [str(name)]
