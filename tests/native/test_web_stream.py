import pytest

from superfluid.domain.events import Event, ToolUse
from superfluid.native.schema import CodecError
from superfluid.native.web_stream import (
    StreamCommitted,
    StreamDone,
    StreamFailed,
    StreamFrame,
    StreamProvisional,
    StreamRequest,
    decode_stream_request,
    encode_stream_frame,
)


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        (b'{"session":1,"max_tokens":256}', StreamRequest(1, 256, False)),
        (b'{"provisional":true,"max_tokens":0,"session":2,"x":[]}', StreamRequest(2, 0, True)),
    ],
)
def test_stream_request_without_provisional_does_not_ask_for_it(body: bytes, request_: StreamRequest) -> None:
    assert decode_stream_request(body) == request_


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"session":1}', "max_tokens: the key is missing"),
        (b'{"session":1,"max_tokens":1,"provisional":null}', "provisional: expected a boolean, got null"),
        (b'{"session":1,"max_tokens":1,"max_tokens":1}', "max_tokens: the key occurs more than once"),
        (b'{"session":1,"max_tokens":4294967296}', "max_tokens: expected a whole number from 0 to 4294967295"),
        (b"[1,256]", "expected an object, got an array"),
        (b"", "not valid JSON"),
    ],
)
def test_stream_request_that_is_not_one_is_refused_with_its_place(body: bytes, reason: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode_stream_request(body)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (
            StreamCommitted(Event(5, 1, 7, ToolUse("f", "{}"))),
            '{"committed":{"event_id":5,"epoch":1,"ts_unix_ms":7,"body":{"ToolUse":{"name":"f","arguments":"{}"}}}}',
        ),
        (StreamProvisional(1, "é"), '{"provisional":{"channel":1,"text":"é"}}'),
        (StreamDone(3, 1, 40), '{"done":{"tokens_generated":3,"finish":1,"warm_prefix":40}}'),
        (StreamFailed('session 1 "is" busy\n'), '{"error":"session 1 \\"is\\" busy\\n"}'),
    ],
)
def test_stream_frame_is_one_line_of_compact_json(frame: StreamFrame, text: str) -> None:
    assert encode_stream_frame(frame).decode() == text
