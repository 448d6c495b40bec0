"""The worker's end of the socket: a reader thread that fills the inbox, and a send that any thread may call."""

import socket
import threading
from collections.abc import Callable

from superfluid.worker.frames import FrameBuffer, FrameError, decode_to_worker, encode_frame
from superfluid.worker.inbox import Inbox
from superfluid.worker.protocol import FromWorker

_READ_BYTES = 1 << 16


class DaemonConnection:
    """Owns the socket. ``on_lost`` is called when the daemon has gone (with no reason) or talks nonsense, by whichever
    thread notices."""

    def __init__(self, sock: socket.socket, inbox: Inbox, on_lost: Callable[[str], None]) -> None:
        self._socket = sock
        self._inbox = inbox
        self._on_lost = on_lost
        self._sending = threading.Lock()

    def start_reading(self) -> threading.Thread:
        thread = threading.Thread(target=self._read, name="daemon connection", daemon=True)
        thread.start()
        return thread

    def send(self, message: FromWorker) -> None:
        """Blocks while the daemon does not read. Raises OSError if it is gone, unless ``on_lost`` ended the process."""
        frame = encode_frame(message)
        try:
            with self._sending:
                self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            self._on_lost("")
            raise

    def _read(self) -> None:
        frames = FrameBuffer()
        try:
            while data := self._socket.recv(_READ_BYTES):
                for payload in frames.feed(data):
                    self._inbox.put(decode_to_worker(payload))
        except FrameError as error:
            self._on_lost(f"a frame from the daemon does not decode: {error}")
        except ConnectionResetError:
            # It went without having read all that it was sent.
            self._on_lost("")
        except OSError as error:
            self._on_lost(f"the connection to the daemon broke: {error.strerror}")
        else:
            self._on_lost("")
