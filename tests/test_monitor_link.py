"""``superfluid serve`` on a terminal of its own: the monitor on it, and what is left of it afterwards."""

import os
import signal
from pathlib import Path

from tests.fixtures.terminal_server import TerminalServer


def test_quit_key_drains_the_server_and_restores_the_terminal(tmp_path: Path) -> None:
    with TerminalServer(tmp_path) as server:
        assert server.is_serving()
        server.press(b"q")
        assert server.wait_for_exit() == 0
        server.wait_for(server.is_terminal_restored)
    logs = list(tmp_path.rglob("logs/superfluid.*.jsonl"))
    assert len(logs) == 1
    assert "draining" in logs[0].read_text()


def test_monitor_that_crashes_leaves_a_good_terminal_and_a_server_that_goes_on(tmp_path: Path) -> None:
    with TerminalServer(tmp_path) as server:
        os.kill(server.monitor_pid(), signal.SIGKILL)
        server.wait_for(lambda: b"the monitor has ended; the server goes on" in server.output)
        assert server.is_terminal_restored()
        assert server.is_serving()
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_for_exit() == 0


def test_server_that_is_killed_takes_its_monitor_along_and_leaves_a_good_terminal(tmp_path: Path) -> None:
    with TerminalServer(tmp_path) as server:
        monitor = server.monitor_pid()
        os.kill(server.pid, signal.SIGKILL)
        server.wait_for(lambda: not Path(f"/proc/{monitor}").exists())
        server.wait_for(server.is_terminal_restored)


def test_terminal_that_is_closed_does_not_stop_the_server(tmp_path: Path) -> None:
    with TerminalServer(tmp_path) as server:
        monitor = server.monitor_pid()
        server.hang_up()
        server.wait_for(lambda: not Path(f"/proc/{monitor}").exists())
        assert server.is_serving()
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_for_exit() == 0


def test_terminal_that_is_resized_is_drawn_anew(tmp_path: Path) -> None:
    with TerminalServer(tmp_path) as server:
        server.resize(60, 200)
        server.wait_for(lambda: b"peak" in server.output)
        assert server.is_serving()
        server.press(b"\x03")
        assert server.wait_for_exit() == 0
