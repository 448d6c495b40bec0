"""Cutting a worker's output into lines."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from superfluid.worker.output import LineSplitter


def lines_of(*chunks: bytes, max_line_bytes: int = 16) -> list[str]:
    splitter = LineSplitter(max_line_bytes)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


def test_lines_over_several_chunks_are_joined() -> None:
    assert lines_of(b"one\ntw", b"o\r\n\nthree") == ["one", "two", "three"]


def test_line_that_never_ends_is_cut_before_it_ends() -> None:
    splitter = LineSplitter(4)
    assert splitter.feed(b"abcdefghij") == ["abcd", "efgh"]
    assert splitter.finish() == ["ij"]


def test_cut_does_not_split_a_character() -> None:
    assert lines_of("aé€😀z".encode() + b"\n", max_line_bytes=5) == ["aé", "€", "😀z"]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert lines_of(b"a\xffb\n", b"\x80" * 20) == ["a\ufffdb", "\ufffd" * 16, "\ufffd" * 4]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_lines_do_not_depend_on_the_chunks_and_lose_nothing(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    chunks = [data[a:b] for a, b in pairwise(edges)]
    in_chunks = lines_of(*chunks, max_line_bytes=300)
    assert in_chunks == [t for part in data.split(b"\n") if (t := part.decode("utf-8", "replace").rstrip("\r"))]
