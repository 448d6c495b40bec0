"""The network of ``Client``: sockets that block, and the way from a coroutine to a plain method."""

import functools
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from superfluid_client.network import Address, Link

_PIECE_BYTES = 65_536

P = ParamSpec("P")
T = TypeVar("T")
Core = TypeVar("Core")
CoreOf = TypeVar("CoreOf", covariant=True)


class BlockingLink:
    """``network.Link`` over one socket, which it owns."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._is_receiving = False
        self._is_closed = False

    async def send(self, data: bytes, timeout_seconds: float) -> None:
        self._socket.settimeout(timeout_seconds)
        self._socket.sendall(data)

    async def receive(self, timeout_seconds: float | None) -> bytes:
        self._is_receiving = True
        try:
            self._socket.settimeout(timeout_seconds)
            return self._socket.recv(_PIECE_BYTES)
        finally:
            self._is_receiving = False
            if self._is_closed:
                self._socket.close()

    def is_idle(self) -> bool:
        """One that can be read was closed, or has something nobody asked for."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # A thread that still waits for data would go on with whatever gets the descriptor's number next: it wakes up
        # by the shutdown, and closes the socket itself.
        if not self._is_receiving:
            self._socket.close()


class BlockingNetwork:
    """``network.Network`` for threads."""

    async def connect(self, address: Address, timeout_seconds: float) -> Link:
        if isinstance(address, tuple):
            connected = socket.create_connection(address, timeout_seconds)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return BlockingLink(connected)
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(timeout_seconds)
            connected.connect(str(address))
        except BaseException:
            connected.close()
            raise
        return BlockingLink(connected)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (there is no loop that this could hold up)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose network blocks, so that it has no reason to suspend."""
    try:
        coroutine.send(None)
    except StopIteration as over:
        result: T = over.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking client waited for an event loop")


class Facade(Protocol[CoreOf]):
    """The blocking face of ``_core``, whose methods are coroutines."""

    @property
    def _core(self) -> CoreOf: ...


def blocking(
    method: Callable[Concatenate[Core, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[Core], P], T]:
    """The facade's method that does what its core's ``method`` does: same parameters, same result, same words."""

    @functools.wraps(method)
    def call(self: Facade[Core], /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return run(method(self._core, *arguments, **keywords))

    return call
