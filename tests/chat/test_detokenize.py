"""Incremental UTF-8."""

from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.detokenize import IncrementalDecoder


@given(st.binary(max_size=60), st.lists(st.integers(1, 5)))
def test_decoder_at_any_chunking_equals_whole_decoding(data: bytes, sizes: list[int]) -> None:
    decoder = IncrementalDecoder()
    parts = []
    rest = data
    for size in sizes:
        parts.append(decoder.feed(rest[:size]))
        rest = rest[size:]
    parts.append(decoder.feed(rest))
    parts.append(decoder.finish())
    assert "".join(parts) == data.decode("utf-8", "replace")


def test_decoder_inside_a_character_holds_bytes_back() -> None:
    decoder = IncrementalDecoder()
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert decoder.feed(b"a" + first) == "a"
    assert decoder.has_pending
    assert decoder.feed(second) == "é"
    assert not decoder.has_pending


def test_decoder_finished_inside_a_character_gives_the_replacement_and_starts_anew() -> None:
    decoder = IncrementalDecoder()
    decoder.feed("🎉".encode()[:3])
    assert decoder.finish() == "\ufffd"
    assert decoder.feed(b"a") == "a"
