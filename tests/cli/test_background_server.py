"""A server in the background: a real one on the fake engine."""

import os
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.fixtures.short_paths import short_directory

from superfluid.cli.background_server import start_in_background
from superfluid.cli.chat.link import Link
from superfluid.cli.chat.starting import ask_facts
from superfluid.errors import EnvironmentFaultError

PATIENCE_SECONDS = 30.0


@pytest.fixture(autouse=True)
def _same_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is started with what this process imports, wherever that lies."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_background_server_becomes_ready_logs_to_its_file_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERFLUID_HOME", str(tmp_path))
    with short_directory() as directory:
        path = directory / "s.sock"
        server = start_in_background(tmp_path, ["--runtime", "fake", "--socket", str(path)])
        try:
            link = Link(path)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (link.can_connect() and ask_facts(link).model == "fake"):
                server.check()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            link.close()
            while (address := server.address()) is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            with urllib.request.urlopen(f"{address}/health") as page:
                assert page.status == 200
        finally:
            server.stop()
            server.wait(PATIENCE_SECONDS)
    assert server.log == tmp_path / "logs" / "serve.log"
    assert "listening on http://127.0.0.1:" in server.log.read_text()


def test_background_server_that_cannot_start_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPERFLUID_HOME", str(tmp_path))
    (tmp_path / "logs").mkdir()
    earlier = "error: something of another day\n  listening on http://127.0.0.1:1; OpenAI clients use it\n"
    (tmp_path / "logs" / "serve.log").write_text(earlier)
    server = start_in_background(tmp_path, [str(tmp_path / "absent.gguf")])
    assert server.wait(PATIENCE_SECONDS) == 1
    with pytest.raises(EnvironmentFaultError, match=r"the server did not start: .*absent\.gguf does not exist"):
        server.check()
    assert server.address() is None


def test_background_server_whose_log_cannot_be_made_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(EnvironmentFaultError, match=r"cannot start a server with its log at .*serve\.log"):
        start_in_background(tmp_path, [])
