"""The daemon's end of its monitor: starts the process, feeds it, and puts the terminal right when it has ended."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from superfluid.telemetry.line_format import level_name, screen_line
from superfluid.telemetry.logs import DaemonLog, JsonFileSink, Sink, print_note
from superfluid.telemetry.stderr_capture import StderrCapture
from superfluid.telemetry.stderr_sink import StderrSink
from superfluid.tui.protocol import FrameError, FrameReader, Hello, LogLine, Sample, decode_from_monitor, encode_frame

FEED_SECONDS: Final = 0.25
KEPT_LINES: Final = 2000
STOP_SECONDS: Final = 3.0
COMMAND: Final = (sys.executable, "-m", "superfluid.tui.monitor")
# Out of the alternate screen, cursor on, mouse, paste and focus reports off, plain keys, plain text.
_LEAVE_SCREEN: Final = (
    "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[?1004l\x1b[<u\x1b[0m\r"
)
_READ_BYTES: Final = 4096

logger = logging.getLogger("superfluid_daemon")


class MonitorSink:
    """A log sink that keeps the newest lines for the monitor. Any thread."""

    dropped_lines = 0

    def __init__(self) -> None:
        self.lines: deque[LogLine] = deque(maxlen=KEPT_LINES)

    def write(self, record: logging.LogRecord) -> None:
        level = level_name(record.levelno)
        self.lines += [LogLine(level, line) for line in screen_line(record).splitlines()]

    def take_stderr(self, line: str) -> None:
        self.lines.append(LogLine("", line))

    def close(self) -> None:
        """Nothing is held open."""


class MonitorLink:
    """``sample`` is asked four times a second; ``on_quit`` is called for every time the user wants to stop.

    Serving never depends on the monitor: when it ends, however it does, the log goes to stderr again.
    """

    def __init__(
        self,
        logs: DaemonLog,
        hello: Hello,
        sample: Callable[[], Sample],
        on_quit: Callable[[], None],
        *,
        log_directory: Path | None = None,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """``log_directory`` is where the log is written as well; ``None`` if the log's own sinks stay."""
        self._logs = logs
        self._hello = hello
        self._sample = sample
        self._on_quit = on_quit
        self._log_directory = log_directory
        self._command = command
        self._sink = MonitorSink()
        self._capture = StderrCapture(self._sink.take_stderr, is_mirrored=not os.isatty(2))
        self._terminal: list[Any] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def open(self) -> None:
        """Raises OSError if the process cannot be started; everything is then as it was."""
        ours, theirs = socket.socketpair()
        self._terminal = termios.tcgetattr(1)
        with theirs:
            # Textual draws on its standard error: all three are the terminal.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, str(theirs.fileno()), stdin=0, stdout=1, stderr=1, pass_fds=(theirs.fileno(),)
            )
        ours.setblocking(False)
        self._socket = ours
        self._capture.start()
        self._logs.replace_sinks(*self._sinks_beside_screen())
        with contextlib.suppress(ValueError):  # no signals in a thread that is not the main one
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._task = asyncio.create_task(self._run(self._process, ours), name="monitor")

    async def close(self) -> None:
        """Ends the monitor and puts the terminal right. Idempotent."""
        self._is_stopping = True
        if self._task is None or self._process is None or self._socket is None:
            return
        with contextlib.suppress(OSError):  # it may have gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        done, _ = await asyncio.wait({self._task}, timeout=STOP_SECONDS)
        if not done:
            self._process.kill()
            await self._task

    def _sinks_beside_screen(self) -> list[Sink]:
        """The screen's, and those that are no screen."""
        sinks: list[Sink] = [self._sink, *(sink for sink in self._logs.sinks if not isinstance(sink, StderrSink))]
        if self._log_directory is not None:
            try:
                sinks.append(JsonFileSink(self._log_directory))
            except OSError as error:
                print_note(f"cannot log into {self._log_directory}: {error.strerror}; the log is on the screen only")
        return sinks

    async def _run(self, process: asyncio.subprocess.Process, connection: socket.socket) -> None:
        feeding = asyncio.create_task(self._feed(connection), name="monitor feed")
        listening = asyncio.create_task(self._listen(connection), name="monitor keys")
        code = await process.wait()
        for task in (feeding, listening):
            task.cancel()
        await asyncio.gather(feeding, listening, return_exceptions=True)
        connection.close()
        self._restore_terminal()
        self._capture.stop()
        self._logs.replace_sinks(StderrSink(), *[sink for sink in self._logs.sinks if sink is not self._sink])
        if not self._is_stopping:
            logger.warning("the monitor has ended; the server goes on", extra={"fields": {"exit_code": code}})

    async def _feed(self, connection: socket.socket) -> None:
        """A monitor that does not read is waited for, and gets the newest when it does."""
        loop = asyncio.get_running_loop()
        frames = bytearray(encode_frame(self._hello))
        lines = self._sink.lines
        with contextlib.suppress(OSError):  # it has gone: the end of its process says the rest
            while True:
                while lines:
                    frames += encode_frame(lines.popleft())
                frames += encode_frame(self._sample())
                await loop.sock_sendall(connection, frames)
                frames.clear()
                await asyncio.sleep(FEED_SECONDS)

    async def _listen(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = FrameReader()
        with contextlib.suppress(OSError, FrameError):
            while data := await loop.sock_recv(connection, _READ_BYTES):
                for payload in reader.feed(data):
                    decode_from_monitor(payload)
                    self._on_quit()

    def _on_hangup(self) -> None:
        """The terminal was closed. The monitor dies of it, and the server does not."""
        self._terminal = None
        logger.warning("the terminal was closed; the server goes on")

    def _restore_terminal(self) -> None:
        if self._terminal is None:
            return
        with contextlib.suppress(OSError, termios.error):  # it has been closed
            os.write(1, _LEAVE_SCREEN.encode())
            termios.tcsetattr(1, termios.TCSADRAIN, self._terminal)
