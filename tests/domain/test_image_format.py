import struct

import pytest
from tests.fixtures.images import picture

from superfluid.domain.image_format import ImageSize, image_size, require_image
from superfluid.errors import InvalidValueError

JPEG = (
    b"\xff\xd8"
    + b"\xff\xe0\x00\x10JFIF\x00" + bytes(9)
    + b"\xff\xff\xdb\x00\x04ab"
    + b"\xff\xc2\x00\x0b\x08" + struct.pack(">HH", 30, 40) + bytes(4)
)  # fmt: skip
GIF = b"GIF89a" + struct.pack("<HH", 3, 4)
BMP = b"BM" + bytes(12) + struct.pack("<Iii", 40, 5, -6)
OLD_BMP = b"BM" + bytes(12) + struct.pack("<IHH", 12, 5, 6)


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (picture(0, width=5, height=9), ImageSize("PNG", 5, 9)),
        (JPEG, ImageSize("JPEG", 40, 30)),
        (GIF, ImageSize("GIF", 3, 4)),
        (BMP, ImageSize("BMP", 5, 6)),
        (OLD_BMP, ImageSize("BMP", 5, 6)),
    ],
)
def test_size_is_read_from_the_header(content: bytes, size: ImageSize) -> None:
    assert image_size(content) == size


@pytest.mark.parametrize("content", [JPEG, GIF, BMP, picture(0)])
def test_size_of_a_header_that_is_cut_is_none_or_the_size_and_never_fails(content: bytes) -> None:
    for end in range(40):
        assert image_size(content[:end]) in (None, image_size(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"hello", "no PNG, JPEG, BMP or GIF"),
        (b"RIFF0000WEBPVP8 ", "WebP"),
        (b"RIFF0000WAVEfmt ", "no PNG"),
        (b"ID3\x03" + bytes(20), "no PNG"),
        (b"\xff\xfb\x90\x44" + bytes(20), "no PNG"),
        (b"\x00\x00\x00\x18ftypheic", "HEIC"),
        (b"<svg xmlns=''/>", "SVG"),
        (png_header(0, 10), "0 x 10"),
        (png_header(40_000, 1), "32768 on a side"),
        (png_header(10_000, 10_000), "33.6 megapixels"),
        (png_header(2**32 - 1, 2**32 - 1), "megapixels"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_reason(content: bytes, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        require_image(content)
