"""The client's table of the binary protocol, held against the daemon's schema."""

import json
import struct
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from superfluid_client.postcard import MalformedFrameError, decode_reply, encode_subscribe
from superfluid_client.records import Event
from tests.fixtures.session_values import values

from superfluid.domain import events
from superfluid.native import json_codec, postcard, requests, responses

NUMBERS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("kind", typing.get_args(events.Body), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_event_reads_the_same_from_the_socket_and_from_json(kind: type, data: st.DataObject) -> None:
    event = events.Event(data.draw(NUMBERS), data.draw(NUMBERS), data.draw(NUMBERS), data.draw(values(kind)))
    name, fields = decode_reply(postcard.response_codec().encode(responses.SubEvent(7, event)))
    assert (name, fields["sub"]) == ("SubEvent", 7)
    assert fields["event"] == json.loads(json_codec.event_codec().encode(event))
    assert Event.from_json(fields["event"]).kind == kind.__name__


@pytest.mark.parametrize(
    ("reply", "name", "fields"),
    [
        (responses.Subscribed(2**63), "Subscribed", {"sub": 2**63}),
        (responses.SubProvisional(1, 1, "é"), "SubProvisional", {"sub": 1, "channel": 1, "text": "é"}),
        (responses.SubEnded(1, "lagged"), "SubEnded", {"sub": 1, "reason": "lagged"}),
        (responses.Err("no"), "Err", {"message": "no"}),
    ],
)
def test_reply_to_a_subscription_reads_as_its_fields(
    reply: responses.Response, name: str, fields: dict[str, object]
) -> None:
    assert decode_reply(postcard.response_codec().encode(reply)) == (name, fields)


@given(NUMBERS, NUMBERS, st.booleans())
def test_subscribe_is_what_the_daemon_reads(session: int, cursor: int, provisional: bool) -> None:
    payload = encode_subscribe(session, cursor, provisional=provisional)
    assert postcard.request_codec().decode(payload) == requests.Subscribe(session, cursor, provisional)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_subscribe_with_a_number_that_is_none_is_a_value_error(number: int) -> None:
    with pytest.raises(ValueError, match="no session and no event"):
        encode_subscribe(1, number, provisional=False)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "too early"),
        (b"\x0d\x05no", "too early"),
        (b"\x0d\x01\xff", "UTF-8"),
        (b"\x09" + b"\xff" * 11, "without end"),
        (b"\x00\x01", "reply 0 belongs to no subscription"),
        (b"\x09\x01\x00\x01\x00\x19", "variant 25 is unknown"),
        (b"\x09\x01\x00\x01\x00\x0b\x01\x02", "neither true nor false"),
    ],
)
def test_frame_that_is_none_says_what_is_wrong(payload: bytes, problem: str) -> None:
    with pytest.raises(MalformedFrameError, match=problem):
        decode_reply(payload)


def test_float_that_is_no_number_reads_as_json_has_it() -> None:
    params = struct.pack("<3f", float("nan"), float("inf"), 0.7) + b"\x00\x00"
    _, fields = decode_reply(b"\x09\x01\x00\x01\x00\x00\x00" + params)
    read = fields["event"]["body"]["Created"]["params"]
    assert (read["temperature"], read["top_p"], read["min_p"]) == (None, None, 0.7)
