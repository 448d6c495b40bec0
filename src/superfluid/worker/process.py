"""One worker process as the daemon sees it: spawning, its socket, its output, its end. Lives on the event loop."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, Self, cast

from superfluid.errors import WorkerFailedError
from superfluid.worker.frames import FrameBuffer, FrameError, decode_from_worker, encode_frame
from superfluid.worker.output import LineSplitter
from superfluid.worker.protocol import FromWorker, ToWorker

# -P keeps the working directory off the module path: a json.py lying there must not become ours.
WORKER_COMMAND = (sys.executable, "-P", "-m", "superfluid.worker")

_SECRET_NAME = re.compile(
    r"TOKEN$|API_?KEY|PASSWORD|PASSWD|SECRET|CREDENTIAL|PRIVATE_?KEY|ACCESS_?KEY",
    re.IGNORECASE,
)
_KILL_SECONDS = 10.0
_GRACE_SECONDS = 1.0


def scrub_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables whose names look like a credential's."""
    return {name: value for name, value in environment.items() if not _SECRET_NAME.search(name)}


def without(environment: Mapping[str, str], names: Set[str | None]) -> dict[str, str]:
    """The environment without what the operator has put a client's key into: no worker needs one."""
    return {name: value for name, value in environment.items() if name not in names}


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a worker inherits.

    An aborting llama.cpp would call a debugger to print its stack: that takes a second in which streams stand still,
    and buries the line that names the cause.
    """
    return scrub_environment(environment) | {"GGML_NO_BACKTRACE": "1"}


class WorkerExit(NamedTuple):
    """How a worker ended. ``return_code`` is negative for a signal, ``None`` if the process could not be reaped.

    ``last_line`` is the last it printed; ``fault`` says why the daemon ended it, if the daemon did.
    """

    return_code: int | None
    last_line: str
    fault: str | None

    def describe(self) -> str:
        """What happened, as the end of a sentence about the process."""
        if self.fault is not None:
            return self.fault
        if self.return_code is None:
            return "could not be ended"
        if self.return_code < 0:
            return f"died of {_signal_name(-self.return_code)}"
        return f"exited with code {self.return_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class WorkerProcess:
    """A running worker. ``on_message`` and ``on_line`` are called on the loop, in order, and not after ``end``."""

    def __init__(self, on_message: Callable[[FromWorker], None], on_line: Callable[[str], None]) -> None:
        self._lost = asyncio.Event()
        self._channel = _Channel(on_message, self.kill, self._lost)
        self._output = _Output(on_line, self._lost)
        self._transport: asyncio.SubprocessTransport | None = None
        self._fault: str | None = None

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_message: Callable[[FromWorker], None],
        on_line: Callable[[str], None],
    ) -> Self:
        """Starts ``command`` with the number of its socket's descriptor appended, in a session of its own.

        Raises WorkerFailedError if the system will not start it; nothing is left behind then, nor when it is cancelled.
        """
        process = cls(on_message, on_line)
        ours, theirs = socket.socketpair()
        try:
            await process._start(command, environment, ours, theirs)
        except OSError as error:
            ours.close()
            raise WorkerFailedError(f"The model's process could not be started: {error.strerror or error}.") from error
        except asyncio.CancelledError:
            ours.close()
            if process._transport is not None:
                process._channel.closed.set()
                process.kill("is not wanted any more")
                await process.end()
            raise
        finally:
            theirs.close()
        return process

    async def _start(
        self, command: Sequence[str], environment: Mapping[str, str], ours: socket.socket, theirs: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        self._transport, _ = await loop.subprocess_exec(
            lambda: self._output,
            *command,
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=worker_environment(environment),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        await loop.create_unix_connection(lambda: self._channel, sock=ours)

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    def send(self, message: ToWorker) -> None:
        """Queues the message; without effect once the worker is gone."""
        self._channel.send(encode_frame(message))

    def kill(self, fault: str) -> None:
        """SIGKILL. ``fault`` becomes the reason in the exit record, unless there is one already."""
        # The return code guards against a number that was reaped and may be somebody else's by now.
        if self._transport is not None and self._transport.get_returncode() is None:
            self._fault = self._fault or fault
            self._transport.kill()

    async def wait_lost(self, timeout_seconds: float) -> bool:
        """Whether the process has exited or closed its socket, at the latest after the time."""
        return await _within(self._lost, timeout_seconds)

    async def end(self, grace_seconds: float = _GRACE_SECONDS) -> WorkerExit:
        """Waits for the exit (kills after ``grace_seconds``), delivers what is in the socket, frees everything."""
        if not await _within(self._output.exited, grace_seconds):
            self.kill("closed its connection without exiting")
            await _within(self._output.exited, _KILL_SECONDS)
        await _within(self._channel.closed, _GRACE_SECONDS)
        await _within(self._output.closed, _GRACE_SECONDS)
        self._channel.close()
        self._output.flush()
        assert self._transport is not None
        return_code = self._transport.get_returncode()
        self._transport.close()
        return WorkerExit(return_code, self._output.last_line, self._fault)


async def _within(event: asyncio.Event, timeout_seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_seconds)
    except TimeoutError:
        return False
    return True


class _Channel(asyncio.Protocol):
    """The socket. A frame that does not decode ends the worker, and nothing after it is read."""

    def __init__(
        self, on_message: Callable[[FromWorker], None], on_fault: Callable[[str], None], lost: asyncio.Event
    ) -> None:
        self.closed = asyncio.Event()
        self._on_message = on_message
        self._on_fault = on_fault
        self._lost = lost
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._is_deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        try:
            for payload in self._frames.feed(data):
                self._on_message(decode_from_worker(payload))
        except FrameError as error:
            self._is_deaf = True
            self._on_fault(f"sent a frame that does not decode ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._lost.set()

    def send(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def close(self) -> None:
        self._is_deaf = True
        if self._transport is not None:
            self._transport.abort()


class _Output(asyncio.SubprocessProtocol):
    """Standard output and error, merged into lines, and the news of the exit."""

    def __init__(self, on_line: Callable[[str], None], lost: asyncio.Event) -> None:
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self.last_line = ""
        self._on_line = on_line
        self._lost = lost
        self._lines = LineSplitter()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._pass_on(self._lines.feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        self._lost.set()

    def flush(self) -> None:
        self._pass_on(self._lines.finish())

    def _pass_on(self, lines: list[str]) -> None:
        for line in lines:
            self.last_line = line
            self._on_line(line)
