"""The unix socket's framing: a 4-byte little-endian length, then that many bytes of one message. Pure; both sides."""

import struct

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class FrameError(ValueError):
    """The peer broke the framing: the connection is to be dropped without a reply."""


def encode_frame(payload: bytes) -> bytes:
    """One whole frame. Only readers bound its size, but a length must fit in its 4 bytes: FrameError otherwise."""
    if len(payload) >> 32:
        raise FrameError(f"a payload of {len(payload)} bytes has no frame")
    return _LENGTH.pack(len(payload)) + payload


class FrameCutter:
    """Cuts what was read from a connection into payloads. Keeps at most one frame that is not complete."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max = max_frame_bytes
        self._is_broken = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that ``data`` completes, which may be empty ones.

        Raises FrameError on a length over the bound, before any of that frame is kept; frames ahead of it in the same
        ``data`` are given first, and the error comes with the next call (or with ``finish``).
        """
        if self._is_broken:
            raise FrameError(f"a frame exceeds {self._max} bytes")
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self._max:
                return self._break_off(payloads)
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                payloads.append(bytes(view[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]
        return payloads

    def finish(self) -> None:
        """Call it at the end of the stream: raises FrameError if that was inside a payload. An end between frames or
        inside a length is a clean close."""
        if self._is_broken:
            raise FrameError(f"a frame exceeds {self._max} bytes")
        if len(self._buffer) >= _LENGTH.size:
            raise FrameError("the stream ended inside a frame")

    @property
    def buffered_bytes(self) -> int:
        """What is kept of the frame that is not complete."""
        return len(self._buffer)

    def _break_off(self, payloads: list[bytes]) -> list[bytes]:
        self._is_broken = True
        self._buffer.clear()
        if not payloads:
            raise FrameError(f"a frame exceeds {self._max} bytes")
        return payloads
