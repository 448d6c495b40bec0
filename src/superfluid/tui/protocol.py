"""What the daemon tells its monitor, and what the monitor asks of it: frames over a socket pair. Pure; both sides.

A frame is a 4-byte little-endian length and that many bytes of MessagePack.
"""

import struct

import msgspec
from msgspec import Struct

from superfluid.domain.statistics import ModelStatistics

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")


class Hello(Struct, frozen=True, tag="hello"):
    """First of all: what does not change. ``banner`` is what the server printed at its start."""

    model: str
    engine: str
    node: str
    url: str
    banner: str
    lanes: int
    window_tokens: int
    tick_target_seconds: float


class Sample(Struct, frozen=True, tag="sample"):
    """A few times a second. ``sessions`` are those of the lanes, in the lanes' order; 0 is none."""

    uptime_seconds: float
    statistics: ModelStatistics
    sessions: list[int]
    is_draining: bool
    dropped_lines: int


class LogLine(Struct, frozen=True, tag="log"):
    """A line of the log, or of the standard error. ``level`` is a name such as ``WARN``, empty for the latter."""

    level: str
    text: str


class Quit(Struct, frozen=True, tag="quit"):
    """The user wants to stop the server: the first drains it, the second stops it at once."""


ToMonitor = Hello | Sample | LogLine
FromMonitor = Quit


class FrameError(ValueError):
    """The other side sent what is no frame."""


_encoder = msgspec.msgpack.Encoder()
_to_monitor = msgspec.msgpack.Decoder(ToMonitor)
_from_monitor = msgspec.msgpack.Decoder(FromMonitor)


def encode_frame(message: ToMonitor | FromMonitor) -> bytes:
    """One whole frame."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream into payloads. Raises FrameError for a length over the bound."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(buffer) < end:
                break
            payloads.append(bytes(buffer[_LENGTH.size : end]))
            del buffer[:end]
        return payloads


def decode_to_monitor(payload: bytes) -> ToMonitor:
    """Raises FrameError."""
    try:
        return _to_monitor.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


def decode_from_monitor(payload: bytes) -> FromMonitor:
    """Raises FrameError."""
    try:
        return _from_monitor.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error
