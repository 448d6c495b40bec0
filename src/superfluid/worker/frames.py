"""How messages between the daemon and a worker are framed. Pure; used on both sides.

A frame is a 4-byte little-endian length and that many bytes of MessagePack (one message of ``worker.protocol``).
"""

import struct

import msgspec

from superfluid.worker.protocol import FromWorker, ToWorker

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class FrameError(ValueError):
    """The other side sent a frame that is too long or does not decode: the connection is of no use any more."""


_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode_frame(message: ToWorker | FromWorker) -> bytes:
    """One whole frame, length included."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


class FrameBuffer:
    """Cuts a byte stream into frame payloads. Feed it what was read; iterate over what is complete."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max = max_frame_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by ``data``. Raises FrameError on a length over the bound."""
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        offset = 0
        while len(buffer) - offset >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, offset)
            if length > self._max:
                raise FrameError(f"frame of {length} bytes exceeds {self._max}")
            end = offset + _LENGTH.size + length
            if len(buffer) < end:
                break
            payloads.append(bytes(buffer[offset + _LENGTH.size : end]))
            offset = end
        if offset:
            del buffer[:offset]
        return payloads


def decode_to_worker(payload: bytes) -> ToWorker:
    """Raises FrameError."""
    try:
        return _to_worker.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


def decode_from_worker(payload: bytes) -> FromWorker:
    """Raises FrameError."""
    try:
        return _from_worker.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error
