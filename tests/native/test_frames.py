"""The socket's framing: cutting at any place, the bound, and how a stream may end."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.native.frames import MAX_FRAME_BYTES, FrameCutter, FrameError, encode_frame


def test_frame_is_a_little_endian_length_and_the_payload() -> None:
    payload = bytes.fromhex("02 01 01 02 68 69")
    assert encode_frame(payload) == bytes.fromhex("06 00 00 00 02 01 01 02 68 69")


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(0, 2000), max_size=8))
def test_stream_cut_anywhere_gives_the_payloads_in_order(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(payload) for payload in payloads)
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    cutter = FrameCutter()
    received: list[bytes] = []
    for start, end in itertools.pairwise(places):
        received += cutter.feed(stream[start:end])
    assert received == payloads
    assert cutter.buffered_bytes == 0
    cutter.finish()


def test_stream_fed_byte_by_byte_gives_the_payloads() -> None:
    cutter = FrameCutter()
    stream = encode_frame(b"ab") + encode_frame(b"") + encode_frame(b"c")
    assert [payload for byte in stream for payload in cutter.feed(bytes([byte]))] == [b"ab", b"", b"c"]


def test_bound_is_64_mebibytes_inclusive() -> None:
    assert MAX_FRAME_BYTES == 67_108_864
    cutter = FrameCutter()
    assert cutter.feed(struct.pack("<I", MAX_FRAME_BYTES)) == []
    with pytest.raises(FrameError, match="exceeds 67108864"):
        FrameCutter().feed(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_frame_of_exactly_the_bound_is_accepted() -> None:
    cutter = FrameCutter(max_frame_bytes=4)
    assert cutter.feed(encode_frame(b"abcd")) == [b"abcd"]
    with pytest.raises(FrameError):
        cutter.feed(encode_frame(b"abcde"))


def test_oversize_frame_is_refused_on_its_length_alone_and_nothing_of_it_is_kept() -> None:
    cutter = FrameCutter()
    with pytest.raises(FrameError):
        cutter.feed(b"\xff\xff\xff\xff" + bytes(100))
    assert cutter.buffered_bytes == 0
    with pytest.raises(FrameError):
        cutter.feed(encode_frame(b"late"))
    with pytest.raises(FrameError):
        cutter.finish()


def test_frames_ahead_of_an_oversize_one_are_given_before_the_error() -> None:
    cutter = FrameCutter()
    assert cutter.feed(encode_frame(b"good") + b"\xff\xff\xff\xff") == [b"good"]
    with pytest.raises(FrameError):
        cutter.feed(b"")


def test_claimed_length_takes_no_memory_until_bytes_arrive() -> None:
    cutter = FrameCutter()
    cutter.feed(struct.pack("<I", MAX_FRAME_BYTES) + b"abc")
    assert cutter.buffered_bytes == 7


@pytest.mark.parametrize("rest", [b"", b"\x05", b"\x05\x00\x00"])
def test_end_before_or_inside_a_length_is_a_clean_close(rest: bytes) -> None:
    cutter = FrameCutter()
    cutter.feed(encode_frame(b"x") + rest)
    cutter.finish()


@pytest.mark.parametrize("rest", [b"\x05\x00\x00\x00", b"\x05\x00\x00\x00abcd"])
def test_end_inside_a_payload_is_an_error(rest: bytes) -> None:
    cutter = FrameCutter()
    cutter.feed(encode_frame(b"x") + rest)
    with pytest.raises(FrameError, match="inside a frame"):
        cutter.finish()
