"""Reading server-sent events."""

import pytest
from superfluid_client.sse import SseDecoder


def decode(*pieces: bytes) -> list[str]:
    decoder = SseDecoder()
    events = []
    for piece in pieces:
        decoder.feed(piece)
        while (data := decoder.next_event()) is not None:
            events.append(data)
    return events


def test_decoder_data_lines_are_events() -> None:
    assert decode(b'data: {"a":1}\n\ndata:[DONE]\n\n') == ['{"a":1}', "[DONE]"]


def test_decoder_comments_and_other_fields_are_skipped() -> None:
    assert decode(b": keep-alive\n\nevent: x\nid: 4\nretry: 5\n\n:\ndata: a\n\n") == ["a"]


def test_decoder_data_in_several_lines_is_joined() -> None:
    assert decode(b"data: a\ndata: b\n\n") == ["a\nb"]


def test_decoder_carriage_returns_and_inner_spaces_are_no_content() -> None:
    assert decode(b"data:  a:b \r\n\r\n") == [" a:b "]


def test_decoder_event_without_its_blank_line_is_not_handed_out() -> None:
    assert decode(b"data: a\n") == []


def test_decoder_bytes_that_are_no_utf8_raise() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        decode(b"data: \xff\n\n")


def test_decoder_pieces_may_be_cut_anywhere() -> None:
    content = 'data: {"a":"é"}\r\n\r\n: x\n\ndata: b\n\n'.encode()
    for size in range(1, len(content)):
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        assert decode(*pieces) == ['{"a":"é"}', "b"]
