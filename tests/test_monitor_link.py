"""``superfluid serve`` on a terminal of its own: the monitor on it, and what is left of it afterwards."""

import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
import urllib.request
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fixtures.command_line import COMMAND, clean_environment

ALTERNATE_SCREEN, MAIN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


class TerminalServer:
    """The server on a pseudo terminal. ``output`` is all it has written there."""

    def __init__(self, home: Path, *options: str) -> None:
        self.output = b""
        self._controller, terminal = pty.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.attributes = termios.tcgetattr(terminal)
        environment = {**clean_environment(home), "TERM": "xterm-256color"}
        command = [*COMMAND, "serve", "--runtime", "fake", "--http", "127.0.0.1:0", *options]
        # A shell leads the session, as on any terminal: the kernel hangs up when it is the leader that dies.
        self._shell = subprocess.Popen(
            ["sh", "-c", '"$@"; echo "exit code $?"; read rest', "sh", *command],
            env=environment, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.terminal = terminal
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.wait_for(lambda: ALTERNATE_SCREEN in self.output and b"follow" in self.output)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._shell.kill()
        self._shell.wait()
        os.close(self.terminal)

    @property
    def pid(self) -> int:
        return int(_children(self._shell.pid)[0])

    def exit_code(self) -> int | None:
        """``None`` while the server runs."""
        found = re.search(rb"exit code (\d+)", self.output)
        return None if found is None else int(found[1])

    def wait_for_exit(self) -> int | None:
        self.wait_for(lambda: self.exit_code() is not None)
        return self.exit_code()

    @property
    def url(self) -> str:
        text = self.output.decode("utf-8", "replace")
        return text.partition("listening on ")[2].partition(";")[0]

    def is_serving(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/health", timeout=10) as response:
            return bool(response.status == 200)

    def monitor_pid(self) -> int:
        for child in _children(self.pid):
            if b"tui.monitor" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise AssertionError("there is no monitor")

    def press(self, keys: bytes) -> None:
        os.write(self._controller, keys)

    def hang_up(self) -> None:
        """What the kernel does when the terminal's window is closed, but for the shell, whose end nobody waits for."""
        for pid in (self.monitor_pid(), self.pid):
            os.kill(pid, signal.SIGHUP)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.output[-3000:]
            time.sleep(0.02)

    def is_terminal_restored(self) -> bool:
        is_left = self.output.rfind(MAIN_SCREEN) > self.output.rfind(ALTERNATE_SCREEN)
        return is_left and termios.tcgetattr(self.terminal)[:4] == self.attributes[:4]

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._controller, 65536)
            except OSError:
                return
            if not data:
                return
            self.output += data


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


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
        ioctl(server.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        os.kill(server.monitor_pid(), signal.SIGWINCH)
        server.wait_for(lambda: b"peak" in server.output)
        assert server.is_serving()
        server.press(b"\x03")
        assert server.wait_for_exit() == 0
