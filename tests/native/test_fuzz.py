"""Whatever bytes arrive: decoders give a value or a CodecError, and connections answer, end, and leave others alone.

Hypothesis makes some of the bytes, the makers in ``fixtures/fuzzing`` the rest. ``make fuzz`` goes on for a million.
"""

import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fixtures.fuzzing.codecs import check_long_text, check_payload, check_stream, check_text
from tests.fixtures.fuzzing.conversation import Act, Step, make_script, play
from tests.fixtures.fuzzing.frames import FrameMaker, long_text
from tests.fixtures.session_values import values

from superfluid.domain.events import Body
from superfluid.native import json_codec, postcard
from superfluid.native.encodings import socket_encoding, web_encoding
from superfluid.native.frames import encode_frame
from superfluid.native.protocol import Request, Response
from superfluid.native.schema import CodecError
from superfluid.native.varint import write_varint

FRAMES = 2000
POSTCARD: dict[str, Any] = {
    "request": postcard.request_codec,
    "response": postcard.response_codec,
    "event": postcard.event_codec,
    "body": postcard.body_codec,
}
JSON: dict[str, Any] = {
    "request": json_codec.request_codec,
    "response": json_codec.response_codec,
    "event": json_codec.event_codec,
    "body": json_codec.body_codec,
}


# ---- codecs


@given(st.binary(max_size=200))
@example(b"")
def test_bytes_on_the_socket_are_frames_or_an_end_however_they_come_in(data: bytes) -> None:
    check_stream(data)


@given(st.binary(max_size=200))
def test_bytes_as_a_payload_are_a_value_or_an_error(data: bytes) -> None:
    check_payload(data)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_as_json_are_a_value_or_an_error(data: bytes) -> None:
    check_text(data)


NAMES = st.sampled_from(["Create", "Tree", "session", "params", "text", "span", "Err", "message", "x"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | NAMES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    )
)
def test_any_json_value_is_a_message_or_an_error(tree: Any) -> None:
    for codec in JSON.values():
        try:
            codec().from_plain(tree)
        except CodecError:
            continue


@pytest.mark.parametrize(("name", "kind"), [("request", Request), ("response", Response), ("body", Body)])
def test_every_value_goes_through_both_encodings_and_back(name: str, kind: Any) -> None:
    on_socket, on_web = POSTCARD[name](), JSON[name]()

    @given(values(kind))
    @settings(max_examples=300)
    def check(value: Any) -> None:
        payload = on_socket.encode(value)
        assert on_socket.decode(payload) == value
        assert on_socket.encode(on_web.decode(on_web.encode(value))) == payload

    check()


@pytest.mark.parametrize("seed", range(3))
def test_nearly_right_messages_are_values_or_errors(seed: int) -> None:
    maker = FrameMaker(Random(seed))
    for _ in range(FRAMES):
        check_payload(maker.payload())
        check_text(maker.text())
    for _ in range(FRAMES // 10):
        check_stream(maker.damaged(b"".join(encode_frame(maker.payload()) for _ in range(4))))
    for _ in range(4):
        check_long_text(long_text(maker))


def test_text_nested_beyond_all_measure_is_an_error_at_once() -> None:
    for text in (b"[" * 100_000, b'{"Create":' * 100_000, b'{"a":[' * 50_000, b'[{"a":' * 50_000 + b"]" * 100_000):
        check_text(text)


def test_payload_nested_beyond_all_measure_is_an_error_at_once() -> None:
    # A Rerooted record whose prefix holds one of its own kind, and so on.
    check_payload(b"\x0f\x01\x01\x05" * 100_000)


@pytest.mark.parametrize("name", POSTCARD)
def test_counts_and_lengths_beyond_the_payload_take_no_memory(name: str) -> None:
    """Every place of a payload is overwritten with a huge number; nothing is set aside for what is not there."""
    decode = POSTCARD[name]().decode
    huge = bytearray()
    write_varint(huge, 2**40)
    maker = FrameMaker(Random(5))
    for _ in range(40):
        made = postcard.request_codec().encode(maker.request()) if name == "request" else maker.payload()
        for position in range(min(len(made), 60)):
            assert peak_bytes(decode, made[:position] + huge + made[position + 1 :]) < 100_000


@pytest.mark.parametrize("name", POSTCARD)
def test_memory_of_a_payload_is_in_proportion_to_its_bytes(name: str) -> None:
    decode = POSTCARD[name]().decode
    for filling in (b"\x00", b"\x01", b"\x0f\x01", b"\x01\x01\x01", b"\x80\x01", b"\xff"):
        payload = filling * (50_000 // len(filling))
        for first in range(36):
            for count in (b"", b"\x01", b"\x01\x01", b"\x01\x00\xa0\x8d\x06"):
                data = bytes([first]) + count + payload
                assert peak_bytes(decode, data) < 120 * len(data) + 100_000


def test_memory_of_a_text_is_in_proportion_to_its_bytes() -> None:
    for text in (
        "[" + "0," * 30_000 + "0]",
        "[" + "[]," * 20_000 + "0]",
        '{"List":' + "1" * 60_000 + "}",
        '"' + "é" * 30_000,
    ):
        for wrapped in (text, f'{{"Append":{{"session":1,"span":{text}}}}}'):
            data = wrapped.encode()
            assert peak_bytes(json_codec.request_codec().decode, data) < 200 * len(data) + 100_000


def peak_bytes(decode: Any, data: bytes) -> int:
    """The most memory that decoding takes, whether it succeeds or not."""
    tracemalloc.start()
    try:
        decode(data)
    except CodecError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def test_long_messages_take_no_more_than_their_length() -> None:
    """Work that is not linear would not end within the time that a test has."""
    size = 1_000_000
    check_payload(b"\x01\x01\x00" + b"\x80" * size)
    check_payload(b"\x01\x01\x00\xc0\x84\x3d" + b"\x01" * size)
    check_text(b'{"AppendMessage":{"session":1,"role":1,"text":"' + b"\\u00e9" * (size // 6) + b'"}}')
    check_text(b'{"Append":{"session":1,"span":[' + b"1," * (size // 2) + b"1]}}")
    check_text(b'{"Append":{' + b'"session":1,' * (size // 12) + b'"span":[]}}')


# ---- connections


def scripts(*, is_json: bool) -> st.SearchStrategy[list[Step]]:
    """Steps of Hypothesis' choosing, so that it can shorten what fails."""
    codec: Any = json_codec if is_json else postcard
    right = values(Request).map(codec.request_codec().encode)
    wrong = st.binary(max_size=12)
    return st.lists(st.sampled_from(Act) | right | right | right | wrong, max_size=40)


@given(scripts(is_json=False))
@settings(max_examples=60, deadline=None)
@pytest.mark.asyncio
async def test_socket_connection_under_any_script_answers_ends_and_leaves_others_alone(script: list[Step]) -> None:
    await play(script, socket_encoding())


@given(scripts(is_json=True))
@settings(max_examples=60, deadline=None)
@pytest.mark.asyncio
async def test_web_connection_under_any_script_answers_ends_and_leaves_others_alone(script: list[Step]) -> None:
    await play(script, web_encoding())


@pytest.mark.parametrize("is_json", [False, True])
async def test_connection_under_long_scripts_answers_ends_and_leaves_others_alone(*, is_json: bool) -> None:
    frames = 0
    for seed in range(20):
        script = make_script(FrameMaker(Random(seed), (2, 3)), 100, is_json=is_json)
        frames += (await play(script, web_encoding() if is_json else socket_encoding())).frames
    assert frames > 900
