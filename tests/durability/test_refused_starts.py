"""Sessions directories that a server must not use: the command line says why, and exits with 1."""

import ctypes
import os
import subprocess
from pathlib import Path

import apsw
from tests.fixtures.command_line import COMMAND, clean_environment, run_superfluid
from tests.fixtures.live_daemon import LiveDaemon

from superfluid.native import requests, responses
from superfluid.store.sqlite import SqliteStore

SERVE = ("serve", "--runtime", "fake", "--no-tui", "--http", "127.0.0.1:0")
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1


def refused(home: Path, *arguments: str) -> str:
    """What the command says when it refuses to start."""
    done = run_superfluid(*SERVE, *arguments, home=home)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def refused_by_modes(home: Path, *arguments: str) -> str:
    """The same, with a root user who is bound by file modes like everybody else."""
    done = subprocess.run(
        [*COMMAND, *SERVE, *arguments],
        env=clean_environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=_give_up_override if os.geteuid() == 0 else None,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def _give_up_override() -> None:
    """Takes the right to override file modes from the program that is executed next."""
    if ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0):
        raise OSError("the capability could not be dropped")


def test_read_only_directory_is_refused_by_name(tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir(mode=0o555)
    said = refused_by_modes(tmp_path, "--sessions", str(sessions))
    assert f"the sessions directory {sessions} cannot be used: Permission denied" in said


def test_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    sessions = tmp_path / "locked" / "sessions"
    sessions.parent.mkdir(mode=0o555)
    said = refused_by_modes(tmp_path, "--sessions", str(sessions))
    assert f"the sessions directory {sessions} cannot be used: Permission denied" in said


def test_path_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    file.write_text("mine")
    assert f"the sessions directory {file} cannot be used" in refused(tmp_path, "--sessions", str(file))
    assert file.read_text() == "mine"


def test_read_only_store_is_refused_by_name(tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    SqliteStore(sessions / "sessions.db").close()
    (sessions / "sessions.db").chmod(0o444)
    said = refused_by_modes(tmp_path, "--sessions", str(sessions))
    assert f"the session store {sessions / 'sessions.db'} cannot be opened" in said


def test_newer_store_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    store = sessions / "sessions.db"
    SqliteStore(store).close()
    raw = apsw.Connection(str(store))
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    before = store.read_bytes()
    said = refused(tmp_path, "--sessions", str(sessions))
    assert "was written by a newer superfluid (version 99 of its tables" in said
    assert store.read_bytes() == before


def test_file_that_is_no_store_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    (sessions / "sessions.db").write_bytes(b"something else " * 1000)
    assert "cannot be" in refused(tmp_path, "--sessions", str(sessions))
    assert (sessions / "sessions.db").read_bytes() == b"something else " * 1000


def test_second_server_is_refused_by_name_and_the_first_serves_on(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path) as daemon:
        said = refused(tmp_path, "--sessions", str(daemon.sessions), "--socket", str(tmp_path / "other.sock"))
        assert f"another server (process {daemon.pid}) uses the sessions directory {daemon.sessions}" in said
        assert daemon.is_alive
        with daemon.client() as client:
            assert client.create() == 1


def test_directory_of_a_killed_server_is_free_again(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path) as daemon:
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert client.create() == 1


def test_start_logs_the_stores_size_and_metrics_tell_it(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path) as daemon:
        with daemon.client() as client:
            client.create()
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            reply = client.ask(requests.Metrics())
        assert isinstance(reply, responses.Text)
        sizes = [line.split()[1] for line in reply.text.splitlines() if line.startswith("superfluid_store_bytes ")]
        assert int(sizes[0]) > 4096
        (line,) = [line for line in daemon.log.splitlines() if "the session store is open" in line][1:]
        assert "sessions_made=1" in line


def test_store_is_private_whatever_the_umask(tmp_path: Path) -> None:
    with LiveDaemon(tmp_path) as daemon, daemon.client() as client:
        client.create()
        files = [path for path in daemon.sessions.iterdir() if path.name.startswith("sessions.db")]
        assert files
        assert {path.stat().st_mode & 0o077 for path in files} == {0}
