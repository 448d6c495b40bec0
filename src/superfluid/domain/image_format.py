"""What an image file says of itself in its first bytes: the format and the size in pixels. Pure; both processes.

Looked at before anything decodes the file: a few bytes can claim gigabytes of pixels, and decoders take data for sound
or video that nobody meant so.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from superfluid.errors import InvalidValueError

MAX_PIXELS: Final = 1 << 25
"""33.5 megapixels: 100 MB when they are decoded."""
MAX_EDGE: Final = 1 << 15

_FORMATS: Final = "PNG, JPEG, BMP or GIF"
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_WITHOUT_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))


class ImageSize(NamedTuple):
    format: str
    width: int
    height: int


def require_image(content: bytes) -> ImageSize:
    """Raises InvalidValueError unless it begins like an image of a format and a size that can be shown to a model."""
    size = image_size(content)
    if size is None:
        kind = _kind(content)
        raise InvalidValueError(f"this is no {_FORMATS} image{kind}", param="blob")
    if min(size.width, size.height) < 1:
        raise InvalidValueError(f"the {size.format} image is {size.width} x {size.height} pixels", param="blob")
    if size.width * size.height > MAX_PIXELS or max(size.width, size.height) > MAX_EDGE:
        raise InvalidValueError(
            f"the {size.format} image is {size.width} x {size.height} pixels; at most {MAX_PIXELS / 1e6:.1f} "
            f"megapixels and {MAX_EDGE} on a side can be shown: make it smaller",
            param="blob",
        )
    return size


def image_size(content: bytes) -> ImageSize | None:
    """``None`` if it is none of the formats, or ends before its size does."""
    for magic, name, read in _READERS:
        if content.startswith(magic):
            try:
                found = read(content)
            except struct.error:
                return None
            return None if found is None else ImageSize(name, *found)
    return None


def _png(content: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from(">II", content, 16)
    return (width, height) if content[12:16] == b"IHDR" else None


def _gif(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", content, 6)
    return width, height


def _bmp(content: bytes) -> tuple[int, int] | None:
    (header,) = struct.unpack_from("<I", content, 14)
    if header == 12:
        width, height = struct.unpack_from("<HH", content, 18)
        return width, height
    width, height = struct.unpack_from("<ii", content, 18)
    # A negative height is a picture stored from the top.
    return abs(width), abs(height)


def _jpeg(content: bytes) -> tuple[int, int] | None:
    """Walks the segments to the one that opens the frame."""
    position = 2
    while position + 4 <= len(content):
        if content[position] != 0xFF:
            return None
        marker = content[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker in _JPEG_WITHOUT_LENGTH:
            position += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", content, position + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", content, position + 2)
            position += 2 + max(2, length)
    return None


def _kind(content: bytes) -> str:
    """What people take for one."""
    if not content:
        return ": it is empty"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ": it is a WebP; convert it"
    if content[4:12] in (b"ftypavif", b"ftypheic", b"ftypmif1"):
        return ": it is a HEIC or AVIF; convert it"
    if content.lstrip()[:4] in (b"<svg", b"<?xm"):
        return ": it looks like an SVG; convert it"
    return ""


_READERS: Final[tuple[tuple[bytes, str, Callable[[bytes], tuple[int, int] | None]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "PNG", _png),
    (b"\xff\xd8\xff", "JPEG", _jpeg),
    (b"GIF87a", "GIF", _gif),
    (b"GIF89a", "GIF", _gif),
    (b"BM", "BMP", _bmp),
)
