"""Reading server-sent events."""

import pytest
from superfluid_client.sse import SseDecoder


def decode(content: bytes) -> list[str]:
    decoder = SseDecoder()
    return [data for line in content.splitlines(keepends=True) if (data := decoder.take_line(line)) is not None]


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
