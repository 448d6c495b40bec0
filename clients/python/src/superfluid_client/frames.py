"""Length-prefixed frames over a link, as on the daemon's unix socket."""

import struct

from superfluid_client.network import Link
from superfluid_client.postcard import MalformedFrameError

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class FrameConnection:
    """Owns its link. Being cancelled while it reads loses nothing."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._buffer = bytearray()

    async def send(self, payload: bytes, timeout_seconds: float) -> None:
        """Raises OSError."""
        await self._link.send(_LENGTH.pack(len(payload)) + payload, timeout_seconds)

    async def receive(self) -> bytes:
        """The next frame's payload, however long that takes. Raises OSError, and MalformedFrameError for a length that
        no frame has."""
        while (payload := self._take()) is None:
            data = await self._link.receive(None)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            self._buffer += data
        return payload

    def close(self) -> None:
        self._link.close()

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise MalformedFrameError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return payload
