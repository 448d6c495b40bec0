"""The checksum of a stored event. Pure."""

import struct
import zlib

_HEAD = struct.Struct("<QQQQ")


def event_checksum(session: int, event_id: int, epoch: int, ts_unix_ms: int, body: bytes) -> int:
    """CRC-32 over the event and the place it belongs to, so that a record that moved is found out as well."""
    return zlib.crc32(body, zlib.crc32(_HEAD.pack(session, event_id, epoch, ts_unix_ms)))
