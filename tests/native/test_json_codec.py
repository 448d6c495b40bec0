"""The JSON encoding: one test table per mapping rule, round trips of every type, and everything malformed."""

import json
import struct
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fixtures import session_tables as tables
from tests.fixtures.session_values import values

from superfluid.domain import events
from superfluid.domain.events import Body, Event, GenParams, PurgeMode
from superfluid.native import json_codec, postcard, requests, responses
from superfluid.native.protocol import Inspection, Request, Response, SessionSummary
from superfluid.native.schema import CodecError

PARAMS = '{"temperature":0.7,"top_p":0.95,"min_p":0.0,"top_k":0,"seed":1}'
SUMMARY = SessionSummary(1, None, 0, "té", False, 0, 0, 1, 2, 0)
INSPECTION = Inspection(
    SUMMARY,
    GenParams(0.7, 1, 0, 0, 2**64 - 1),
    1,
    2,
    2,
    False,
    0,
    None,
    ((4, "f", "{}"),),
    responses.Parked(2, 1),
    (1, 2),
    (Event(0, 1, 5, events.EpochBump()),),
    2,
    bytes(range(16)),
)


def decode(text: str | bytes) -> Request:
    return json_codec.request_codec().decode(text)


def decode_response(text: str | bytes) -> Response:
    return json_codec.response_codec().decode(text)


def refusal(text: str | bytes) -> str:
    with pytest.raises(CodecError) as caught:
        decode(text)
    return str(caught.value)


# ---- the mapping, both ways


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (requests.Tree(), '"Tree"'),
        (requests.Generate(1, 256), '{"Generate":{"session":1,"max_tokens":256}}'),
        (
            requests.Create(None, GenParams(1, 1, 0, 0, 1)),
            '{"Create":{"parent":null,"params":{"temperature":1.0,"top_p":1.0,"min_p":0.0,"top_k":0,"seed":1}}}',
        ),
        (
            requests.AppendMessage(1, 1, 'é"\n\U0001f600'),
            '{"AppendMessage":{"session":1,"role":1,"text":"é\\"\\n\U0001f600"}}',
        ),
        (
            requests.SetMeta(1, 0, None, True),
            '{"SetMeta":{"session":1,"expected_version":0,"title":null,"archived":true}}',
        ),
        (requests.SetQos(1, 3, False), '{"SetQos":{"session":1,"class":3,"batch_invariant":false}}'),
        (requests.Purge(1, 0, PurgeMode.REROOT), '{"Purge":{"session":1,"expected_generation":0,"mode":"Reroot"}}'),
        (
            requests.Rebase(1, (events.Drop(2, 4), events.Replace(4, 6, 1, "x")), None),
            '{"Rebase":{"session":1,"edits":[{"Drop":{"from":2,"to":4}},{"Replace":{"from":4,"to":6,"role":1,"text":"x"}}],'
            '"params":null}}',
        ),
        (requests.PutMedia(b"\x00\xff\x80", "image/png"), '{"PutMedia":{"bytes":[0,255,128],"mime":"image/png"}}'),
        (requests.AppendSystem(1, None, ("{}",)), '{"AppendSystem":{"session":1,"text":null,"tools":["{}"]}}'),
        (requests.Warmth(3), '{"Warmth":{"session":3}}'),
    ],
)
def test_request_is_written_in_declared_order_and_read_back(request_: Request, text: str) -> None:
    assert json_codec.request_codec().encode(request_).decode() == text
    assert decode(text) == request_


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (responses.Cancelling(), '"Cancelling"'),
        (responses.Created(1), '{"Created":{"session":1}}'),
        (
            responses.Delta(Event(4, 1, 1700000000000, events.Generated((11,), "é", 0, 1))),
            '{"Delta":{"event":{"event_id":4,"epoch":1,"ts_unix_ms":1700000000000,'
            '"body":{"Generated":{"span":[11],"text":"é","channel":0,"finish":1}}}}}',
        ),
        (
            responses.SubEvent(5, Event(2, 2, 0, events.EpochBump())),
            '{"SubEvent":{"sub":5,"event":{"event_id":2,"epoch":2,"ts_unix_ms":0,"body":"EpochBump"}}}',
        ),
        (responses.Tree(((1, None, 0), (2, 1, 3))), '{"Tree":{"nodes":[[1,null,0],[2,1,3]]}}'),
        (responses.ToolCalls(((4, "f", "{}"),)), '{"ToolCalls":{"calls":[[4,"f","{}"]]}}'),
        (
            responses.Ledger(((4, responses.LedgerEntry("f", "{}", 0, False, None, 0)),)),
            '{"Ledger":{"entries":[[4,{"name":"f","arguments":"{}","state":0,"cancel_requested":false,'
            '"lease_deadline_unix_ms":null,"late_effects":0}]]}}',
        ),
        (
            responses.Events((Event(3, 1, 0, events.Rerooted(1, ((0, events.EpochBump()), (1, events.Pinned(7))))),)),
            '{"Events":{"events":[{"event_id":3,"epoch":1,"ts_unix_ms":0,"body":{"Rerooted":{"purged_parent":1,'
            '"prefix":[[0,"EpochBump"],[1,{"Pinned":{"deadline_unix_ms":7}}]]}}}]}}',
        ),
        (responses.Err("no"), '{"Err":{"message":"no"}}'),
        (responses.Throttled(9), '{"Throttled":{"retry_after_ms":9}}'),
        (responses.Warmth(1, 0, 9), '{"Warmth":{"lane":1,"memory":0,"disk":9}}'),
    ],
)
def test_response_is_written_in_declared_order_and_read_back(response: Response, text: str) -> None:
    assert json_codec.response_codec().encode(response).decode() == text
    assert decode_response(text) == response


def test_inspection_is_written_under_its_own_name_and_read_back() -> None:
    encoded = json_codec.response_codec().encode(responses.Inspected(INSPECTION))
    tree = json.loads(encoded)["Inspection"]["inspection"]
    assert list(tree) == [field for field, _ in dict(tables.rows(tables.STRUCTS))["Inspection"]]
    assert tree["tier"] == {"Parked": {"covered": 2, "encoding": 1}}
    assert tree["store_id"] == list(range(16))
    assert tree["params"]["seed"] == 2**64 - 1
    assert tree["open_tool_calls"] == [[4, "f", "{}"]]
    back = decode_response(encoded)
    assert isinstance(back, responses.Inspected)
    assert back.inspection.store_id == INSPECTION.store_id
    assert back.inspection.events == INSPECTION.events


# ---- variants


@pytest.mark.parametrize("name", [name for name, fields in tables.rows(tables.REQUESTS) if not fields])
def test_variant_without_fields_is_read_as_a_name_and_as_a_null_only(name: str) -> None:
    assert decode(f'"{name}"') == decode(f'{{"{name}":null}}') == decode(f' {{ "{name}" : null }} ')
    assert refusal(f'{{"{name}":{{}}}}') == f"{name}: this variant has no fields"
    assert refusal(f'{{"{name}":[]}}') == f"{name}: this variant has no fields"


@pytest.mark.parametrize("text", ['{"Purge":{"session":1,"expected_generation":0,"mode":{"Cascade":null}}}'])
def test_enum_within_a_request_is_read_as_a_null_too(text: str) -> None:
    assert decode(text) == requests.Purge(1, 0, PurgeMode.CASCADE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"Create"', "Create: expected an object, got null"),
        ('{"Create":null}', "Create: expected an object, got null"),
        ('{"Create":[null]}', "Create: expected an object, got an array"),
        ('{"Nope":{}}', "there is no variant Nope"),
        ('"tree"', "there is no variant tree; the nearest is Tree"),
        ('{"hello world":{}}', "there is no such variant"),
        ('{"Committed":{}}', "there is no variant Committed"),
        ("{}", "exactly one key"),
        ('{"Tree":null,"List":null}', "exactly one key"),
        ('{"Tree":null,"Tree":null}', "exactly one key"),
        ("[]", "got an array"),
        ("7", "got a whole number"),
        ("null", "got null"),
        ('{"Purge":{"session":1,"expected_generation":0,"mode":"Burn"}}', "Purge.mode: there is no variant Burn"),
        ('{"Purge":{"session":1,"expected_generation":0,"mode":1}}', "Purge.mode: expected a variant's name"),
        ('{"Purge":{"session":1,"expected_generation":0,"mode":{"Reroot":{}}}}', "Purge.mode.Reroot: this variant"),
        ('{"Rebase":{"session":1,"edits":[{"Drop":{"from":1,"to":2}},{"Cut":{}}]}}', r"Rebase.edits[1]: there is no"),
        (
            '{"Rebase":{"session":1,"edits":[{"Drop":{"from":1,"to":"2"}}]}}',
            "Rebase.edits[0].Drop.to: expected a whole",
        ),
    ],
)
def test_variant_that_is_not_one_is_refused_with_its_place(text: str, reason: str) -> None:
    assert reason in refusal(text)


# ---- keys


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ('{"Generate":{"max_tokens":2,"session":1}}', requests.Generate(1, 2)),
        ('{"Generate":{"session":1,"max_tokens":2,"extra":[1,{"a":{}}]}}', requests.Generate(1, 2)),
        ('{"Generate":{"session":1,"max_tokens":2,"extra":1,"extra":2}}', requests.Generate(1, 2)),
        ('{"Generate":{"session":1,"max_tokens":2,"extra":{"a":1,"a":2}}}', requests.Generate(1, 2)),
        ('{"SetMeta":{"session":1,"expected_version":0}}', requests.SetMeta(1, 0, None, None)),
        (
            '{"SetMeta":{"session":1,"expected_version":0,"title":null,"archived":null}}',
            requests.SetMeta(1, 0, None, None),
        ),
        ('{"Append":{"session":1,"span":[]}}', requests.Append(1, None, ())),
        ('{"Fork":{"session":1,"at_event":2}}', requests.Fork(1, 2, None)),
        ('{"Generate":{"\\u0073ession":1,"max_tokens":2}}', requests.Generate(1, 2)),
    ],
)
def test_keys_in_any_order_unknown_or_optional_are_accepted(text: str, request_: Request) -> None:
    assert decode(text) == request_


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"Generate":{"session":1}}', "Generate.max_tokens: the key is missing"),
        ('{"Generate":{"session":1,"Max_tokens":2}}', "Generate.max_tokens: the key is missing"),
        ('{"Generate":{"session":1,"session":1,"max_tokens":2}}', "Generate.session: the key occurs more than once"),
        (
            '{"Generate":{"session":1,"\\u0073ession":1,"max_tokens":2}}',
            "Generate.session: the key occurs more than once",
        ),
        ('{"Append":{"session":1,"text":null,"text":null,"span":[]}}', "Append.text: the key occurs more than once"),
        ('{"Append":{"session":1,"text":"a"}}', "Append.span: the key is missing"),
        ('{"Generate":{"session":null,"max_tokens":2}}', "Generate.session: expected a whole number, got null"),
        (f'{{"Create":{{"params":{PARAMS[:-1]},"seed":1}}}}}}', "Create.params.seed: the key occurs more than once"),
    ],
)
def test_key_that_is_missing_or_repeated_is_refused_with_its_place(text: str, reason: str) -> None:
    assert refusal(text) == reason


@pytest.mark.parametrize("key", ["temperature", "top_p", "min_p", "top_k", "seed"])
def test_parameters_lacking_any_field_are_refused(key: str) -> None:
    params = {name: value for name, value in json.loads(PARAMS).items() if name != key}
    assert refusal(json.dumps({"Create": {"params": params}})) == f"Create.params.{key}: the key is missing"


# ---- whole numbers


@pytest.mark.parametrize(
    ("template", "largest"),
    [
        ('{"SetQos":{"session":1,"class":%s,"batch_invariant":true}}', 2**8 - 1),
        ('{"SetBackgroundRate":{"divisor":%s}}', 2**32 - 1),
        ('{"Inspect":{"session":%s}}', 2**64 - 1),
        ('{"PutMedia":{"bytes":[%s],"mime":""}}', 2**8 - 1),
        ('{"Append":{"session":1,"span":[%s]}}', 2**32 - 1),
    ],
)
def test_whole_number_is_read_within_its_range_only(template: str, largest: int) -> None:
    for good in (0, 1, largest):
        assert str(good) in json_codec.request_codec().encode(decode(template % good)).decode()
    for bad in (-1, largest + 1, 2**64, 10**30):
        assert f"expected a whole number from 0 to {largest}" in refusal(template % bad)
    for bad_text in ("1.0", "1e0", "1E3", "-0.0", '"1"', "true", "null", "[1]", "{}"):
        assert "expected a whole number, got" in refusal(template % bad_text)
    for not_json in ("01", "+1", "0x1", "1.", ".5", "1_000", "NaN", "Infinity", "-Infinity", "9" * 5000):
        assert refusal(template % not_json)


def test_seed_beyond_a_double_survives_both_ways() -> None:
    request = requests.Create(None, GenParams(0, 0, 0, 0, 2**53 + 1))
    assert decode(json_codec.request_codec().encode(request)) == request


# ---- single-precision numbers


def single(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def params_text(value: str) -> str:
    return f'{{"Create":{{"params":{{"temperature":{value},"top_p":0,"min_p":0,"top_k":0,"seed":0}}}}}}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.7", single(0.7)),
        ("1", 1.0),
        ("-3", -3.0),
        ("7e-1", single(0.7)),
        ("0.699999988079071", single(0.7)),
        ("16777217", 16777216.0),
        ("1e-60", 0.0),
        ("18446744073709551616", single(2**64)),
        ("1e39", float("inf")),
        ("-1e39", float("-inf")),
    ],
)
def test_fraction_of_any_form_is_read_as_the_nearest_single(text: str, value: float) -> None:
    request = decode(params_text(text))
    assert isinstance(request, requests.Create)
    assert request.params.temperature == value


@pytest.mark.parametrize("text", ['"0.7"', "null", "true", "[0.7]", "1e400", "9" * 400, "NaN", "-Infinity"])
def test_fraction_that_is_not_a_number_is_refused(text: str) -> None:
    assert refusal(params_text(text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.7, "0.7"),
        (single(0.7), "0.7"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.95, "0.95"),
        (1 / 3, "0.33333334"),
        (16777216.0, "16777216.0"),
        (float("nan"), "null"),
        (float("inf"), "null"),
        (1e39, "null"),
    ],
)
def test_fraction_is_written_as_the_shortest_decimal_of_the_same_single(value: float, text: str) -> None:
    encoded = json_codec.request_codec().encode(requests.Create(None, GenParams(value, 0, 0, 0, 0))).decode()
    assert f'"temperature":{text},' in encoded


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(3.4028234663852886e38)
@example(1.401298464324817e-45)
def test_fraction_written_is_read_as_the_same_single_and_no_shorter_one_is(value: float) -> None:
    request = requests.Create(None, GenParams(value, 0, 0, 0, 0))
    encoded = json_codec.request_codec().encode(request)
    assert decode(encoded) == request
    written = json.loads(encoded)["Create"]["params"]["temperature"]
    digits = f"{written:.17e}".split("e")[0].replace(".", "").replace("-", "").rstrip("0")
    shortest = repr(written).lower().split("e")[0].replace(".", "").replace("-", "").strip("0")
    assert len(shortest) <= 9 or digits == shortest
    if len(shortest) > 1:
        assert single(float(f"{value:.{len(shortest) - 2}e}")) != value


# ---- text


@pytest.mark.parametrize("text", ["\\ud800", "\\udc00", "\\ud800x", "\\udc00\\ud800"])
def test_text_with_half_a_surrogate_pair_is_refused(text: str) -> None:
    message = f'{{"AppendMessage":{{"session":1,"role":1,"text":"{text}"}}}}'
    assert refusal(message) == "AppendMessage.text: the text holds half of a surrogate pair"


def test_half_a_surrogate_pair_among_numbers_is_refused_as_what_it_is() -> None:
    message = '{"PutMedia":{"bytes":["\\ud800"],"mime":""}}'
    assert refusal(message) == "PutMedia.bytes[0]: expected a whole number, got text"
    assert "got text" in refusal('{"Append":{"session":1,"span":[1,"\\udfff"]}}')
    assert "got an object" in refusal('{"Append":{"session":1,"span":[{"\\ud800":1}]}}')


def test_text_with_a_surrogate_pair_is_one_character() -> None:
    assert decode('{"SetLogLevel":{"directive":"\\ud83d\\ude00"}}') == requests.SetLogLevel("\U0001f600")


@pytest.mark.parametrize(
    "data",
    [
        b'{"SetLogLevel":{"directive":"\xff"}}',
        b'\xef\xbb\xbf"Tree"',
        '"Tree"'.encode("utf-16"),
        b'"Tree\x00"',
        b'"Tr\nee"',
    ],
)
def test_bytes_that_are_not_json_in_utf8_are_refused(data: bytes) -> None:
    assert refusal(data)


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"Tree":}', '{"Tree":null,}', '"Tree" "List"', "'Tree'", "Tree", "[1,]"]
)
def test_text_that_is_not_json_is_refused(text: str) -> None:
    assert refusal(text).startswith("not valid JSON")


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"Create":{"parent":['])
def test_endless_nesting_is_refused(opening: str) -> None:
    assert refusal(opening * 100_000) == "the JSON is nested too deeply"


def test_refusal_never_quotes_the_content() -> None:
    secret = "correct horse battery staple"
    for text in (
        f'{{"Generate":{{"session":"{secret}","max_tokens":1}}}}',
        f'{{"{secret}":1}}',
        f'"{secret}"',
        f'{{"AppendMessage":{{"text":"{secret}\\ud800","session":1,"role":1}}}}',
        f'{{"AppendMessage":{{"text":"{secret}',
    ):
        assert secret not in refusal(text)


# ---- large arrays of numbers, which take another way through the parser

LARGE = ",".join(str(index % 256) for index in range(40_000))


@pytest.mark.parametrize("separator", [",", ", ", ",\n"])
def test_large_array_is_read_as_a_small_one_is(separator: str) -> None:
    text = f'{{"PutMedia":{{"bytes":[{LARGE.replace(",", separator)}],"mime":"é"}}}}'
    expected = requests.PutMedia(bytes(index % 256 for index in range(40_000)), "é")
    assert decode(text) == decode(text.encode()) == expected


@pytest.mark.parametrize(
    ("array", "rest", "reason"),
    [
        (f"[{LARGE},256]", "", "PutMedia.bytes[40000]: expected a whole number from 0 to 255"),
        (f"[{LARGE},-1]", "", "PutMedia.bytes[40000]: expected a whole number from 0 to 255"),
        (f"[{LARGE},true]", "", "PutMedia.bytes[40000]: expected a whole number, got a boolean"),
        (f"[{LARGE},1.0]", "", "PutMedia.bytes[40000]: expected a whole number, got a number with"),
        (f"[{LARGE},18446744073709551616]", "", "PutMedia.bytes[40000]: expected a whole number"),
        (f"[{LARGE},01]", "", "not valid JSON"),
        (f"[{LARGE},]", "", "not valid JSON"),
        (f"[{LARGE} 1]", "", "not valid JSON"),
        (f"[{LARGE}]", ',"bytes":[]', "PutMedia.bytes: the key occurs more than once"),
        (f"[{LARGE}]", ',"mime":""', "PutMedia.mime: the key occurs more than once"),
        (f"[{LARGE}]", ',"other":NaN', "not valid JSON"),
        (f"[{LARGE}]", ",", "not valid JSON"),
        (f"[{LARGE}]", ',"other":' + "[" * 100_000, "the JSON is nested too deeply"),
    ],
)
def test_large_array_is_refused_as_a_small_one_is(array: str, rest: str, reason: str) -> None:
    assert refusal(f'{{"PutMedia":{{"mime":"","bytes":{array}{rest}}}}}').startswith(reason)


def test_large_array_beside_half_a_surrogate_pair_is_refused() -> None:
    assert refusal(f'{{"PutMedia":{{"bytes":[{LARGE}],"mime":"\\ud800"}}}}')


def test_array_within_a_text_stays_text() -> None:
    text = f"look: [{LARGE}] and \\ [{LARGE}]"
    message = json.dumps({"AppendMessage": {"session": 1, "role": 1, "text": text}})
    assert decode(message) == requests.AppendMessage(1, 1, text)


def test_unknown_repeated_key_beside_a_large_array_is_ignored() -> None:
    text = f'{{"PutMedia":{{"bytes":[{LARGE}],"mime":"","x":1,"x":2}}}}'
    assert isinstance(decode(text), requests.PutMedia)


def test_media_of_several_megabytes_is_read_in_reasonable_time() -> None:
    content = bytes(range(256)) * 12_000
    encoded = json_codec.request_codec().encode(requests.PutMedia(content, ""))
    started = time.process_time()
    assert decode(encoded) == requests.PutMedia(content, "")
    assert time.process_time() - started < 2.0


# ---- every type, both encodings


@given(values(Request))
def test_request_of_any_kind_comes_back_and_agrees_with_the_binary_form(value: Request) -> None:
    encoded = json_codec.request_codec().encode(value)
    assert json_codec.request_codec().decode(encoded) == value
    binary = postcard.request_codec()
    assert json_codec.request_codec().encode(binary.decode_exact(binary.encode(value))) == encoded


@given(values(Response))
def test_response_of_any_kind_comes_back_and_agrees_with_the_binary_form(value: Response) -> None:
    encoded = json_codec.response_codec().encode(value)
    assert json_codec.response_codec().decode(encoded) == value
    binary = postcard.response_codec()
    assert json_codec.response_codec().encode(binary.decode_exact(binary.encode(value))) == encoded


@given(values(Body))
def test_body_of_any_kind_comes_back_under_its_name(value: Body) -> None:
    encoded = json_codec.body_codec().encode(value)
    assert json_codec.body_codec().decode(encoded) == value
    tree = json.loads(encoded)
    name, fields = (tree, []) if isinstance(tree, str) else next((key, list(part)) for key, part in tree.items())
    assert (name, fields) in [(row, [field for field, _ in columns]) for row, columns in tables.rows(tables.BODIES)]


@given(values(Event))
def test_event_comes_back(value: Event) -> None:
    encoded = json_codec.event_codec().encode(value)
    assert json_codec.event_codec().decode(encoded) == value
    assert list(json.loads(encoded)) == ["event_id", "epoch", "ts_unix_ms", "body"]


@pytest.mark.parametrize(
    "value",
    [
        requests.SetLogLevel("\ud800"),
        requests.Purge(1, 0, 1),  # type: ignore[arg-type]
        requests.PutMedia(None, ""),  # type: ignore[arg-type]
        requests.Rebase(1, (requests.List(),), None),  # type: ignore[arg-type]
        responses.Cancelling(),
        None,
    ],
)
def test_value_outside_the_schema_is_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        json_codec.request_codec().encode(value)


# ---- fuzz

json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["session", "params", "text", "Create", "span", "Rebase", "edits", "Drop"]), inner
        )
    ),
    max_leaves=10,
)


@given(json_trees, st.sampled_from([name for name, _ in tables.rows(tables.REQUESTS)]))
def test_any_json_decodes_or_raises_codec_error(tree: Any, name: str) -> None:
    for text in (json.dumps(tree), json.dumps({name: tree})):
        try:
            decode(text)
        except CodecError:
            pass


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_any_bytes_decode_or_raise_codec_error(data: bytes | str) -> None:
    try:
        decode(data)
    except CodecError:
        pass


@given(values(Request), st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_text_decodes_or_raises_codec_error(value: Request, place: int, byte: int) -> None:
    damaged = bytearray(json_codec.request_codec().encode(value))
    damaged[place % len(damaged)] = byte
    try:
        decode(bytes(damaged))
    except CodecError:
        pass
