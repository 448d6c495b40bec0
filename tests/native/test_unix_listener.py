import os
import socket
import stat
from pathlib import Path

import pytest

from superfluid.errors import AddressUnavailableError, UsageError
from superfluid.native.unix_listener import MAX_PATH_BYTES, UnixListener


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def test_socket_is_for_its_owner_only_whatever_the_mask(path: Path) -> None:
    before = os.umask(0)
    try:
        listener = UnixListener(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.socket.close()


def test_missing_directory_is_made(tmp_path: Path) -> None:
    listener = UnixListener(tmp_path / "a" / "b" / "s")
    assert stat.S_ISSOCK(listener.path.stat().st_mode)
    listener.socket.close()


def test_socket_left_by_a_dead_server_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    listener = UnixListener(path)
    listener.socket.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.socket.close()


def test_live_server_is_refused_by_name_and_stays(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        with pytest.raises(AddressUnavailableError, match=r"another server") as caught:
            UnixListener(path)
        assert str(path) in caught.value.message
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_live_server_whose_queue_is_full_is_refused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as waiting:
        live.bind(str(path))
        live.listen(0)
        waiting.connect(str(path))
        with pytest.raises(AddressUnavailableError):
            UnixListener(path)


def test_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(AddressUnavailableError, match="no socket"):
        UnixListener(path)
    assert path.read_text() == "precious"


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AddressUnavailableError, match="cannot listen on"):
        UnixListener(tmp_path / "file" / "s")


@pytest.mark.parametrize("length", [MAX_PATH_BYTES, MAX_PATH_BYTES + 50])
def test_path_that_is_too_long_names_the_flag(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("x" * (length - len(os.fsencode(tmp_path)) - 1))
    with pytest.raises(UsageError, match="--socket"):
        UnixListener(path)


def test_longest_path_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / ("x" * (MAX_PATH_BYTES - len(os.fsencode(tmp_path)) - 2))
    assert len(os.fsencode(path)) == MAX_PATH_BYTES - 1
    UnixListener(path).socket.close()
    assert path.exists()


def test_removal_takes_the_file_away_once(path: Path) -> None:
    listener = UnixListener(path)
    listener.remove()
    assert not path.exists()
    listener.remove()
    listener.socket.close()


def test_removal_leaves_the_file_of_a_later_server(path: Path) -> None:
    first = UnixListener(path)
    first.socket.close()
    # Kept under another name, so that the inode is not used again.
    path.rename(path.with_name("old"))
    second = UnixListener(path)
    first.remove()
    assert path.exists()
    second.socket.close()
