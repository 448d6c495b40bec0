from typing import Any

from superfluid.cli.session.otlp_trace import SessionTrace
from superfluid.domain import events
from superfluid.domain.events import Body, Event, GenParams

STORE_ID = b"\x01" * 16
ROOT = 2**64 - 1
FIRST_MS = 1_700_000_000_000
CREATED = events.Created(None, GenParams(0.0, 1.0, 0.0, 0, 1))
MARKER = "märker"


def log(*bodies: Body) -> list[Event]:
    """Events a second apart, in epoch 2."""
    return [Event(index, 2, FIRST_MS + index * 1000, body) for index, body in enumerate(bodies)]


def trace(*bodies: Body, session: int = 7, model: str = "m") -> list[dict[str, Any]]:
    return SessionTrace(session, log(*bodies), store_id=STORE_ID, model=model).spans


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}


def nanoseconds(index: int) -> str:
    return str((FIRST_MS + index * 1000) * 1_000_000)


def test_session_is_the_root_span_over_all_its_events() -> None:
    (root,) = trace(CREATED, events.Message(1, MARKER, (1,)))
    assert root["traceId"] == "8635eabbf0e1d1d3ef6a2cba2dc1d488"
    assert root["spanId"] == "2063d09e774f6c68"
    assert "parentSpanId" not in root
    assert (root["name"], root["kind"]) == ("session", 1)
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == (nanoseconds(0), nanoseconds(1))
    assert list(attributes(root).items()) == [
        ("superfluid.session_id", "7"),
        ("superfluid.event_id", str(ROOT)),
        ("superfluid.timing", "wall_clock_ms"),
    ]


def test_session_without_times_says_so() -> None:
    (root,) = SessionTrace(1, [Event(0, 1, 0, CREATED)], store_id=None).spans
    assert root["traceId"] == "2fbc593564db792e828b713919ceb10f"
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == ("0", "0")
    assert attributes(root)["superfluid.timing"] == "unavailable"


def test_session_starts_at_its_first_event_that_has_a_time() -> None:
    mixed = [Event(0, 1, 0, CREATED), Event(1, 1, 5, events.EpochBump()), Event(2, 2, 4, events.EpochBump())]
    (root,) = SessionTrace(1, mixed, store_id=None).spans
    assert (root["startTimeUnixNano"], root["endTimeUnixNano"]) == ("5000000", "5000000")


def test_reply_is_a_span_from_its_opening_to_its_end() -> None:
    spans = trace(
        CREATED,
        events.Message(1, MARKER, (1,)),
        events.GenerationPrompt((2, 3)),
        events.Generated((4, 5), MARKER, 0, 0),
        events.Generated((6,), "", 0, 1),
    )
    assert [span["name"] for span in spans] == ["session", "generate"]
    generate = spans[1]
    assert generate["parentSpanId"] == spans[0]["spanId"]
    assert generate["kind"] == 1
    assert (generate["startTimeUnixNano"], generate["endTimeUnixNano"]) == (nanoseconds(2), nanoseconds(4))
    assert list(attributes(generate).items()) == [
        ("superfluid.session_id", "7"),
        ("superfluid.event_id", "2"),
        ("superfluid.parent_event_id", str(ROOT)),
        ("superfluid.epoch", "2"),
        ("superfluid.finish", "1"),
        ("gen_ai.system", "superfluid"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.usage.output_tokens", "3"),
    ]


def test_reply_that_goes_on_in_place_starts_at_its_first_record() -> None:
    spans = trace(
        CREATED,
        events.GenerationPrompt((2,)),
        events.Generated((4,), "a", 0, 4),
        events.EpochBump(),
        events.Generated((5, 6), "b", 0, 1),
    )
    assert [attributes(span).get("gen_ai.usage.output_tokens") for span in spans] == [None, "1", "2"]
    assert attributes(spans[2])["superfluid.event_id"] == "4"


def test_reply_without_an_end_has_no_span() -> None:
    spans = trace(CREATED, events.GenerationPrompt((2,)), events.Generated((4,), "a", 0, 0))
    assert [span["name"] for span in spans] == ["session"]


def test_tool_call_is_a_span_below_the_reply_it_was_made_in() -> None:
    spans = trace(
        CREATED,
        events.GenerationPrompt((2,)),
        events.Generated((4,), MARKER, 2, 0),
        events.ToolUse("get_weather", f'{{"city": "{MARKER}"}}'),
        events.Generated((), "", 2, 1),
        events.ToolResult(3, MARKER, (7,)),
    )
    assert [span["name"] for span in spans] == ["session", "generate", "tool_use"]
    call = spans[2]
    assert call["kind"] == 3
    assert call["spanId"] == "eae23d102a332e85"
    assert call["parentSpanId"] == spans[1]["spanId"]
    assert (call["startTimeUnixNano"], call["endTimeUnixNano"]) == (nanoseconds(3), nanoseconds(5))
    assert list(attributes(call).items()) == [
        ("superfluid.session_id", "7"),
        ("superfluid.event_id", "3"),
        ("superfluid.parent_event_id", "1"),
        ("superfluid.epoch", "2"),
        ("gen_ai.tool.name", "get_weather"),
        ("gen_ai.tool.call.id", "3"),
        ("superfluid.tool.outcome", "result"),
    ]
    assert MARKER not in repr(spans)


def test_tool_call_behind_its_replys_end_is_below_the_session() -> None:
    spans = trace(CREATED, events.Generated((4,), "", 2, 1), events.ToolUse("f", "{}"), events.ToolResult(2, "", ()))
    assert spans[2]["parentSpanId"] == spans[0]["spanId"]
    assert attributes(spans[2])["superfluid.parent_event_id"] == str(ROOT)


def test_tool_call_outcomes_have_their_words() -> None:
    spans = trace(
        CREATED,
        events.ToolUse("a", "{}"),
        events.ToolUse("b", "{}"),
        events.ToolUse("c", "{}"),
        events.ToolExpired(1, "lease elapsed"),
        events.ToolOutcome(2, 1, ""),
        events.ToolOutcome(3, 2, ""),
        events.ToolReconciliation(3, "late result: 4 bytes"),
        events.ToolResult(99, "nobody asked", ()),
    )
    outcomes = [attributes(span)["superfluid.tool.outcome"] for span in spans[1:]]
    assert outcomes == ["expired", "failed", "cancelled"]


def test_open_tool_call_is_a_span_without_length() -> None:
    spans = trace(CREATED, events.ToolUse("a", "{}"), events.EpochBump())
    call = spans[1]
    assert call["startTimeUnixNano"] == call["endTimeUnixNano"] == nanoseconds(1)
    assert attributes(call)["superfluid.tool.outcome"] == "open"
    assert "superfluid.parent_event_id" not in attributes(call)
    assert call["parentSpanId"] == spans[0]["spanId"]


def test_request_names_the_service_the_conventions_and_whether_content_is_in() -> None:
    request = SessionTrace(1, log(CREATED), store_id=None).request(scope_version="1.2", has_content=False)
    (resource_spans,) = request["resourceSpans"]
    assert resource_spans["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "superfluid"}},
        {"key": "superfluid.semconv_version", "value": {"stringValue": "1.36.0"}},
        {"key": "superfluid.content_included", "value": {"boolValue": False}},
    ]
    (scope_spans,) = resource_spans["scopeSpans"]
    assert scope_spans["scope"] == {"name": "superfluid.session", "version": "1.2"}


def test_large_numbers_are_unsigned() -> None:
    (root,) = SessionTrace(2**63 + 1, log(CREATED), store_id=None).spans
    assert attributes(root)["superfluid.session_id"] == str(2**63 + 1)
