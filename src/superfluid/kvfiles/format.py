"""The KV file: one lane's state with its tokens, and a key and checksums that leave no doubt what it is. Pure.

Layout: magic, u16 version, u16 zero, u32 length of the header (little-endian), the header (MessagePack), the XXH3-128
of all that; then the tokens (int32, little-endian) and the state, whose digests are in the header. So every byte is
covered, and the heads alone tell what a directory holds.
"""

import hashlib
import struct
from typing import Final, Protocol

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.names import token_digest

Tokens = NDArray[np.int32]
Bytes = NDArray[np.uint8]

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"SFKV"
_PREFIX: Final = struct.Struct("<4sHHI")
_CHECKSUM_BYTES: Final = 16
_TOKEN_BYTES: Final = 4
_MAX_HEADER_BYTES: Final = 1 << 20


class StateParts(Protocol):
    """A state that does not lie in one piece. Kept as long as its parts are."""

    def __len__(self) -> int: ...

    def parts(self) -> tuple[bytes, memoryview]: ...


class KvFormatError(ValueError):
    """The bytes are not those of an intact KV file."""


class KvKey(Struct, frozen=True):
    """What a state's validity depends on besides its tokens: the weights (a digest of the whole file), what the engine
    says of itself (build, KV types, flash attention), and the adapter on top, if any."""

    model_digest: str
    state_key: str
    adapter: str = ""

    def digest(self) -> str:
        """16 hex digits, which file names carry."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=8).hexdigest()


class KvHeader(Struct, frozen=True, kw_only=True):
    """``owner`` is the session whose tokens they are, ``None`` if there is none. Images need no mention: the ids in
    their places are made from their hashes (``domain.media.image_ids``)."""

    key: KvKey
    kind: ParkKind
    owner: int | None
    created_unix: float
    tokens: int
    token_digest: bytes
    state_bytes: int
    state_digest: bytes


class KvHead(Struct, frozen=True):
    """What a file begins with: enough to know what it holds. ``size_bytes`` is that of the whole file."""

    header: KvHeader
    tokens: Tokens
    state_offset: int
    size_bytes: int


def encode(
    key: KvKey, kind: ParkKind, owner: int | None, tokens: Tokens, state: bytes | StateParts, *, created_unix: float
) -> tuple[KvHeader, list[bytes | memoryview]]:
    """The header, and the parts that make the file, one behind the other. Does not copy the state."""
    packed = tokens.astype("<i4", copy=False).tobytes()
    parts: tuple[bytes | memoryview, ...] = (state,) if isinstance(state, bytes) else state.parts()
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    header = KvHeader(
        key=key,
        kind=kind,
        owner=owner,
        created_unix=created_unix,
        tokens=len(tokens),
        token_digest=token_digest(packed),
        state_bytes=len(state),
        state_digest=digest.digest(),
    )
    encoded = msgspec.msgpack.encode(header)
    head = _PREFIX.pack(_MAGIC, FORMAT_VERSION, 0, len(encoded)) + encoded
    return header, [head + xxhash.xxh3_128_digest(head), packed, *parts]


def head_bytes(data: bytes) -> int:
    """How many bytes of a file its head takes, told by its first bytes. Raises KvFormatError."""
    length, header = _header(data)
    return length if header is None else length + _TOKEN_BYTES * header.tokens


def decode_head(data: bytes) -> KvHead:
    """From at least ``head_bytes`` of a file. Raises KvFormatError."""
    offset, header = _header(data)
    if header is None or len(data) < offset + _TOKEN_BYTES * header.tokens:
        raise KvFormatError("the file ends in its head")
    tokens = np.frombuffer(data, "<i4", header.tokens, offset).astype(np.int32)
    if token_digest(tokens.tobytes()) != header.token_digest:
        raise KvFormatError("the token ids are damaged")
    state_offset = offset + _TOKEN_BYTES * header.tokens
    return KvHead(header, tokens, state_offset, state_offset + header.state_bytes)


def check_state(header: KvHeader, state: bytes | Bytes) -> None:
    """Raises KvFormatError unless ``state`` is bit for bit what was written."""
    if len(state) != header.state_bytes:
        raise KvFormatError(f"the state has {len(state)} of {header.state_bytes} bytes")
    if xxhash.xxh3_128_digest(state.data if isinstance(state, np.ndarray) else state) != header.state_digest:
        raise KvFormatError("the state is damaged")


def _header(data: bytes) -> tuple[int, KvHeader | None]:
    """Where the tokens begin, and the header if all of it is in ``data``."""
    if len(data) < _PREFIX.size:
        raise KvFormatError("the file ends in its head")
    magic, version, zero, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC or version != FORMAT_VERSION or zero or length > _MAX_HEADER_BYTES:
        raise KvFormatError("this is no KV file of this version")
    end = _PREFIX.size + length
    if len(data) < end + _CHECKSUM_BYTES:
        return end + _CHECKSUM_BYTES, None
    if xxhash.xxh3_128_digest(data[:end]) != data[end : end + _CHECKSUM_BYTES]:
        raise KvFormatError("the header is damaged")
    try:
        header = msgspec.msgpack.decode(data[_PREFIX.size : end], type=KvHeader)
    except msgspec.MsgspecError as error:
        raise KvFormatError(f"the header does not decode: {error}") from error
    if header.tokens < 1 or header.state_bytes < 0:
        raise KvFormatError("the header counts no tokens")
    return end + _CHECKSUM_BYTES, header
