"""The binary encoding: worked examples, every variant against an independent encoder, and everything malformed."""

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fixtures import session_tables as tables
from tests.fixtures.session_values import values

from superfluid.domain import events
from superfluid.domain.events import Body, Event, GenParams, PurgeMode
from superfluid.native import postcard, requests, responses
from superfluid.native.protocol import Inspection, Request, Response, SessionSummary
from superfluid.native.schema import CodecError, describe

MOMENT = 1_700_000_000_000

REQUEST_EXAMPLES: list[tuple[Request, str]] = [
    (requests.List(), "07"),
    (requests.AppendMessage(1, 1, "hi"), "02 01 01 02 68 69"),
    (requests.AppendToolResult(1, 4, "x"), "05 01 04 01 78"),
    (requests.Generate(300, 1000), "03 ac 02 e8 07"),
    (requests.Append(1, None, (300, 5)), "01 01 00 02 ac 02 05"),
    (
        requests.Create(None, GenParams(0.7, 0.95, 0, 20, 1)),
        "00 00 33 33 33 3f 33 33 73 3f 00 00 00 00 14 01",
    ),
    (requests.Create(3, GenParams(0, 0, 0, 0, 0)), "00 01 03 000000000000000000000000 00 00"),
    (requests.Subscribe(1, 0, True), "09 01 00 01"),
    (requests.Fork(7, 12, None), "0b 07 0c 00"),
    (requests.SetMeta(1, 0, "a", True), "0e 01 00 01 01 61 01 01"),
    (
        requests.Rebase(1, (events.Drop(2, 4), events.Replace(4, 6, 1, "x")), None),
        "0f 01 02 00 02 04 01 04 06 01 01 78 00",
    ),
    (requests.Purge(1, 0, PurgeMode.REROOT), "10 01 00 01"),
    (requests.SetQos(1, 3, False), "11 01 03 00"),
    (requests.AppendToolOutcome(1, 4, 2, "no"), "1a 01 04 02 02 6e 6f"),
    (requests.PutMedia(b"\x00\xff\x80", "image/png"), "1c 03 00 ff 80 09 69 6d 61 67 65 2f 70 6e 67"),
    (requests.Complete("a", "b", 0, 16), "1f 01 61 01 62 00 10"),
    (requests.Pin(1, 5), "21 01 05"),
    (requests.AppendSystem(1, None, ("{}",)), "22 01 00 01 02 7b 7d"),
    (requests.Warmth(300), "23 ac 02"),
]

RESPONSE_EXAMPLES: list[tuple[Response, str]] = [
    (responses.Created(1), "00 01"),
    (responses.Cancelling(), "02"),
    (
        responses.Committed(Event(1, 1, MOMENT, events.Message(1, "hi", (257, 9)))),
        "03 01 01 80 d0 95 ff bc 31 02 01 02 68 69 02 81 02 09",
    ),
    (
        responses.Delta(Event(4, 1, MOMENT, events.Generated((11,), "é", 0, 1))),
        "01 04 01 80 d0 95 ff bc 31 04 01 0b 02 c3 a9 00 01",
    ),
    (responses.ToolCalls(((4, "f", "{}"),)), "07 01 04 01 66 02 7b 7d"),
    (responses.SubEvent(5, Event(2, 2, 0, events.EpochBump())), "09 05 02 02 00 07"),
    (responses.Err("no"), "0d 02 6e 6f"),
    (responses.Tree(((1, None, 0), (2, 1, 3))), "0e 02 01 00 00 02 01 01 03"),
    (
        responses.Ledger(((4, responses.LedgerEntry("f", "{}", 0, False, None, 0)),)),
        "15 01 04 01 66 02 7b 7d 00 00 00 00",
    ),
    (responses.Throttled(9), "1a 09"),
    (responses.Warmth(300, 0, 1), "1b ac 02 00 01"),
]

SUMMARY = SessionSummary(1, None, 0, None, False, 0, 0, 0, 0, 0)
INSPECTION = Inspection(
    SUMMARY, GenParams(0, 0, 0, 0, 0), 1, 0, 2, False, 0, None, (), responses.Cold(), (), (), 2, bytes(range(16))
)


def single(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def rounded_params(request: Request) -> Request:
    """``request`` as it arrives: its parameters in single precision."""
    if not isinstance(request, requests.Create):
        return request
    params = request.params
    rounded = GenParams(
        single(params.temperature), single(params.top_p), single(params.min_p), params.top_k, params.seed
    )
    return requests.Create(request.parent, rounded)


@pytest.mark.parametrize(("request_", "encoded"), REQUEST_EXAMPLES)
def test_request_example_encodes_and_decodes_to_known_bytes(request_: Request, encoded: str) -> None:
    codec = postcard.request_codec()
    assert codec.encode(request_).hex(" ") == bytes.fromhex(encoded).hex(" ")
    assert codec.decode_exact(bytes.fromhex(encoded)) == rounded_params(request_)


@pytest.mark.parametrize(("response", "encoded"), RESPONSE_EXAMPLES)
def test_response_example_encodes_and_decodes_to_known_bytes(response: Response, encoded: str) -> None:
    codec = postcard.response_codec()
    assert codec.encode(response).hex(" ") == bytes.fromhex(encoded).hex(" ")
    assert codec.decode_exact(bytes.fromhex(encoded)) == response


# ---- an encoder that knows the hand-written tables only

ENUMS = {
    "Request": tables.REQUESTS,
    "Response": tables.RESPONSES,
    "Body": tables.BODIES,
    "RebaseEdit": tables.EDITS,
    "Tier": tables.TIERS,
}
STRUCTS = dict(tables.rows(tables.STRUCTS))


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def table_encode(kind: str, value: Any) -> bytes:
    if kind in ENUMS:
        names = [name for name, _ in tables.rows(ENUMS[kind])]
        name = type(value).__struct_config__.tag or type(value).__name__
        index = names.index(name)
        return varint(index) + encode_fields(tables.rows(ENUMS[kind])[index][1], value)
    if kind in STRUCTS:
        return encode_fields(STRUCTS[kind], value)
    if kind == "PurgeMode":
        return varint(tables.PURGE_MODES.index(value.value))
    if kind.startswith("list<"):
        return varint(len(value)) + b"".join(table_encode(kind[5:-1], item) for item in value)
    if kind.startswith("opt<"):
        return b"\0" if value is None else b"\1" + table_encode(kind[4:-1], value)
    if kind.startswith("("):
        return b"".join(table_encode(part, item) for part, item in zip(kind[1:-1].split(","), value, strict=True))
    if kind in ("string", "bytes"):
        raw = bytes(value, "utf-8") if kind == "string" else bytes(value)
        return varint(len(raw)) + raw
    if kind == "f32":
        return struct.pack("<f", value)
    return {"u8": lambda: bytes([value]), "bool": lambda: bytes([value]), "bytes16": lambda: bytes(value)}.get(
        kind, lambda: varint(value)
    )()


def encode_fields(fields: tables.Fields, value: Any) -> bytes:
    parts = [getattr(value, name) for name in type(value).__struct_fields__]
    return b"".join(table_encode(kind, part) for (_, kind), part in zip(fields, parts, strict=True))


@given(values(Request))
def test_request_of_any_kind_encodes_as_the_table_says_and_comes_back(value: Request) -> None:
    encoded = postcard.request_codec().encode(value)
    assert encoded == table_encode("Request", value)
    assert postcard.request_codec().decode_exact(encoded) == value


@given(values(Response))
def test_response_of_any_kind_encodes_as_the_table_says_and_comes_back(value: Response) -> None:
    encoded = postcard.response_codec().encode(value)
    assert encoded == table_encode("Response", value)
    assert postcard.response_codec().decode_exact(encoded) == value


@given(values(Body))
def test_body_of_any_kind_encodes_as_the_table_says_and_comes_back(value: Body) -> None:
    encoded = postcard.body_codec().encode(value)
    assert encoded == table_encode("Body", value)
    assert postcard.body_codec().decode_exact(encoded) == value


@given(values(Event))
def test_event_comes_back(value: Event) -> None:
    assert postcard.event_codec().decode_exact(postcard.event_codec().encode(value)) == value


def test_constants_encode_as_their_numbers() -> None:
    plain = requests.AppendMessage(1, 1, "hi")
    named = requests.AppendMessage(1, events.TurnRole.USER, "hi")
    assert postcard.request_codec().encode(named) == postcard.request_codec().encode(plain)


@pytest.mark.parametrize("count", [0, 1, 31, 159, 160, 161, 2000, 70000])
@pytest.mark.parametrize("largest", [127, 128, 49151, 2**21, 2**32 - 1])
def test_span_of_any_length_encodes_as_the_table_says_and_comes_back(count: int, largest: int) -> None:
    span = tuple((index * 2654435761) % (largest + 1) for index in range(count - 1)) + (largest,) * min(count, 1)
    body = events.GenerationPrompt(span)
    encoded = postcard.body_codec().encode(body)
    assert encoded == table_encode("Body", body)
    assert postcard.body_codec().decode_exact(encoded) == body


# ---- reading what others may send

SUFFIX = b"\x00" * 3


def span_payload(numbers: list[bytes]) -> bytes:
    return b"\x03" + varint(len(numbers)) + b"".join(numbers)


def test_bytes_behind_a_value_are_ignored_by_decode_and_refused_by_decode_exact() -> None:
    assert postcard.request_codec().decode(b"\x07" + SUFFIX) == requests.List()
    with pytest.raises(CodecError, match="3 bytes follow"):
        postcard.request_codec().decode_exact(b"\x07" + SUFFIX)


def test_bytes_behind_a_stored_body_are_refused() -> None:
    with pytest.raises(CodecError, match="3 bytes follow"):
        postcard.body_codec().decode(b"\x07" + SUFFIX)


@pytest.mark.parametrize("encoded", ["87 00", "87 80 80 80 00"])
def test_variant_number_in_a_longer_form_is_accepted(encoded: str) -> None:
    assert postcard.request_codec().decode_exact(bytes.fromhex(encoded)) == requests.List()


def test_number_in_a_longer_form_is_accepted() -> None:
    assert postcard.request_codec().decode_exact(bytes.fromhex("03 81 00 82 80 80 00")) == requests.Generate(1, 2)


@pytest.mark.parametrize("count", [3, 300])
def test_span_with_numbers_in_longer_forms_is_accepted(count: int) -> None:
    forms = [b"\x81\x80\x80\x80\x00", b"\x81\x80\x00", b"\x01"]
    payload = span_payload([forms[index % 3] for index in range(count)])
    assert postcard.body_codec().decode_exact(payload) == events.GenerationPrompt((1,) * count)


def test_largest_numbers_are_accepted() -> None:
    request = requests.Generate(2**64 - 1, 2**32 - 1)
    assert postcard.request_codec().decode_exact(bytes.fromhex("03 ffffffffffffffffff01 ffffffff0f")) == request


@pytest.mark.parametrize("encoded", ["06 ffffffffffffffffff02", "06 8080808080808080808000", "06 ff" + "ff" * 60])
def test_u64_that_overflows_is_refused(encoded: str) -> None:
    with pytest.raises(CodecError, match="64 bits"):
        postcard.request_codec().decode(bytes.fromhex(encoded))


@pytest.mark.parametrize("encoded", ["12 ffffffff10", "12 808080808000", "8080808010"])
def test_u32_that_overflows_is_refused(encoded: str) -> None:
    with pytest.raises(CodecError, match="32 bits"):
        postcard.request_codec().decode(bytes.fromhex(encoded))


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("bad", ["ffffffff10", "808080808000", "ffffffffffff01"])
def test_span_with_a_number_that_overflows_is_refused(count: int, bad: str) -> None:
    for place in (0, count // 2, count - 1):
        numbers = [b"\x81\x02"] * count
        numbers[place] = bytes.fromhex(bad)
        with pytest.raises(CodecError, match="32 bits"):
            postcard.body_codec().decode(span_payload(numbers))


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("24", "no variant 36"),
        ("ff ff ff ff 0f", "no variant 4294967295"),
        ("09 01 00 02", "boolean is 2"),
        ("0d ff", "boolean is 255"),
        ("00 02 01", "option's tag is 2"),
        ("10 01 00 02", "no variant 2"),
        ("14 02 c3 28", "not UTF-8"),
        ("14 03 ed a0 80", "not UTF-8"),
        ("14 05 61", "length of 5 exceeds"),
        ("1c 80 80 80 80 10 00", "exceeds the 1 bytes"),
        ("1c ff ff ff ff ff ff ff ff ff 01", "exceeds the 0 bytes"),
        ("22 01 00 ff ff ff 7f 00", "exceeds the 1 bytes"),
        ("01 01 00 ff ff ff ff 0f 01", "exceeds the 1 bytes"),
    ],
)
def test_request_with_a_bad_part_is_refused(encoded: str, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        postcard.request_codec().decode(bytes.fromhex(encoded))


@pytest.mark.parametrize(("request_", "encoded"), REQUEST_EXAMPLES)
def test_request_cut_off_anywhere_is_refused(request_: Request, encoded: str) -> None:
    whole = bytes.fromhex(encoded)
    for length in range(len(whole)):
        with pytest.raises(CodecError):
            postcard.request_codec().decode(whole[:length])


@pytest.mark.parametrize("count", [3, 300])
def test_span_cut_off_anywhere_is_refused(count: int) -> None:
    whole = span_payload([b"\x81\x82\x03"] * count)
    for length in range(len(whole)):
        with pytest.raises(CodecError):
            postcard.body_codec().decode(whole[:length])


def test_inspection_of_an_older_daemon_has_no_store_id() -> None:
    encoded = postcard.response_codec().encode(responses.Inspected(INSPECTION))
    assert encoded.endswith(b"\x02\x01" + bytes(range(16)))
    older = postcard.response_codec().decode_exact(encoded[:-17])
    assert isinstance(older, responses.Inspected)
    assert older.inspection.store_id is None
    assert older.inspection.wal_version == 2


def test_inspection_with_half_a_store_id_is_refused() -> None:
    encoded = postcard.response_codec().encode(responses.Inspected(INSPECTION))
    with pytest.raises(CodecError, match="ends inside"):
        postcard.response_codec().decode(encoded[:-1])


def test_records_within_records_come_back_and_endless_ones_are_refused() -> None:
    body: Body = events.EpochBump()
    for depth in range(20):
        body = events.Rerooted(depth, ((depth, body), (depth, body)) if depth < 2 else ((depth, body),))
    assert postcard.body_codec().decode_exact(postcard.body_codec().encode(body)) == body
    with pytest.raises(CodecError, match="too deeply"):
        postcard.body_codec().decode(b"\x0f\x01\x01\x01" * 100_000 + b"\x07")


# ---- writing what cannot be written


@pytest.mark.parametrize(
    "value",
    [
        requests.OpenToolCalls(-1),
        requests.OpenToolCalls(2**64),
        requests.Generate(1, 2**32),
        requests.SetQos(1, 256, False),
        requests.SetQos(1, -1, False),
        requests.Append(1, None, (1, -1)),
        requests.Append(1, None, (1, 2**32)),
        requests.Append(1, None, (2**32,) * 300),
        requests.SetLogLevel("\ud800"),
        requests.Create(None, GenParams(1e39, 1, 0, 0, 0)),
        requests.OpenToolCalls(None),  # type: ignore[arg-type]
        requests.OpenToolCalls("1"),  # type: ignore[arg-type]
        requests.SetLogLevel(None),  # type: ignore[arg-type]
        requests.Append(1, None, (1.5,)),  # type: ignore[arg-type]
        requests.Append(1, None, (1.5,) * 300),  # type: ignore[arg-type]
        requests.Purge(1, 0, 1),  # type: ignore[arg-type]
        requests.Rebase(1, (requests.List(),), None),  # type: ignore[arg-type]
        responses.Cancelling(),
        None,
    ],
)
def test_value_outside_the_schema_is_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        postcard.request_codec().encode(value)


def test_store_id_of_another_length_is_refused() -> None:
    shape = describe(Inspection)
    codec: postcard.PostcardCodec[Inspection] = postcard.PostcardCodec(shape)
    fields = {name: getattr(INSPECTION, name) for name in INSPECTION.__struct_fields__}
    with pytest.raises(CodecError, match="16 bytes has 15"):
        codec.encode(Inspection(**{**fields, "store_id": bytes(15)}))


# ---- fuzz


@given(st.binary(max_size=64))
@example(b"")
def test_any_bytes_decode_or_raise_codec_error(data: bytes) -> None:
    for codec in (postcard.request_codec(), postcard.response_codec(), postcard.body_codec(), postcard.event_codec()):
        try:
            codec.decode(data)
        except CodecError:
            pass


@given(values(Response), st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_payload_decodes_or_raises_codec_error(value: Response, place: int, byte: int) -> None:
    damaged = bytearray(postcard.response_codec().encode(value))
    damaged[place % len(damaged)] = byte
    try:
        postcard.response_codec().decode(bytes(damaged))
    except CodecError:
        pass


@pytest.mark.parametrize("prefix", ["1c", "14", "01 01 00", "22 01 00", "0f 01", "1f"])
@pytest.mark.parametrize("claim", ["ffffffff0f", "ffffffffffffffffff01", "8080808001"])
def test_claimed_length_takes_no_memory(prefix: str, claim: str) -> None:
    codec = postcard.request_codec()
    payload = bytes.fromhex(prefix + claim) + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            codec.decode(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
