"""The schema against the hand-written tables: names, numbers, field order, types, constants."""

import enum
from typing import Any, assert_never

import pytest
from tests.fixtures import session_tables as tables

from superfluid.domain import events, wire_types
from superfluid.domain.reply import Channel, Finish
from superfluid.domain.request import QosClass
from superfluid.domain.state import CallState
from superfluid.native import protocol, requests, responses, schema
from superfluid.native.schema import Shape, describe

UNIONS = [
    (protocol.Request, tables.REQUESTS),
    (protocol.Response, tables.RESPONSES),
    (events.Body, tables.BODIES),
    (events.RebaseEdit, tables.EDITS),
    (responses.Tier, tables.TIERS),
]
UNION_NAMES = [(events.Body, "Body"), (events.RebaseEdit, "RebaseEdit"), (responses.Tier, "Tier")]
STRUCTS = {
    "Event": events.Event,
    "GenParams": events.GenParams,
    "SessionSummary": protocol.SessionSummary,
    "Inspection": protocol.Inspection,
    "LedgerEntry": protocol.LedgerEntry,
}


def word(shape: Shape) -> str:
    """A shape in the tables' words."""
    match shape:
        case wire_types.Unsigned(bits):
            return f"u{bits}"
        case wire_types.Float32():
            return "f32"
        case schema.Boolean():
            return "bool"
        case schema.Text():
            return "string"
        case schema.ByteString():
            return "bytes"
        case wire_types.FixedBytes(size):
            return f"bytes{size}"
        case schema.ListOf(item):
            return f"list<{word(item)}>"
        case schema.TupleOf(items):
            return f"({','.join(word(item) for item in items)})"
        case schema.OptionalOf(item):
            return f"opt<{word(item)}>"
        case schema.Choice(members):
            return type(members[0]).__name__
        case schema.Record():
            return shape.name
        case schema.Variants(union, _) | schema.Deferred(union):
            return next(name for known, name in UNION_NAMES if known == union)
    assert_never(shape)


def row(record: schema.Record) -> tuple[str, list[tuple[str, str]]]:
    return record.name, [(field.name, word(field.shape)) for field in record.fields]


@pytest.mark.parametrize(("union", "table"), UNIONS)
def test_union_lists_variants_and_fields_in_wire_order(union: Any, table: str) -> None:
    shape = describe(union)
    assert isinstance(shape, schema.Variants)
    assert [row(record) for record in shape.records] == tables.rows(table)


def test_tables_have_36_requests_28_responses_and_25_bodies() -> None:
    counts = [len(tables.rows(table)) for table in (tables.REQUESTS, tables.RESPONSES, tables.BODIES)]
    assert counts == [36, 28, 25]


@pytest.mark.parametrize(("name", "fields"), tables.rows(tables.STRUCTS))
def test_struct_lists_fields_in_wire_order(name: str, fields: tables.Fields) -> None:
    shape = describe(STRUCTS[name])
    assert isinstance(shape, schema.Record)
    assert row(shape) == (name, fields)


def test_purge_mode_lists_its_names_in_wire_order() -> None:
    assert tuple(member.value for member in events.PurgeMode) == tables.PURGE_MODES


@pytest.mark.parametrize(
    ("constants", "numbers"),
    [
        (events.TurnRole, {"SYSTEM": 0, "USER": 1, "ASSISTANT": 2, "TOOL": 3}),
        (Channel, {"TEXT": 0, "REASONING": 1, "TOOL_CALL": 2}),
        (Finish, {"NONE": 0, "END_OF_TURN": 1, "LENGTH": 2, "GRAMMAR": 3, "CANCELLED": 4, "ERROR": 5}),
        (
            events.BlockKind,
            {
                "FILE_DIFF": 1,
                "ARTIFACT": 2,
                "CITATION": 3,
                "PROGRESS": 4,
                "DIAGNOSTIC": 5,
                "WORKSPACE_REF": 6,
                "IMAGE": 7,
            },
        ),
        (events.ToolOutcomeCode, {"FAILED": 1, "CANCELLED": 2}),
        (
            CallState,
            {
                "OPEN": 0,
                "CANCEL_REQUESTED": 1,
                "SUCCEEDED": 2,
                "FAILED": 3,
                "CANCELLED": 4,
                "EXPIRED": 5,
                "CANCELLED_WITH_LATE_EFFECT": 6,
            },
        ),
        (responses.ParkEncoding, {"LOSSLESS": 0, "Q8": 1, "Q4": 2}),
        (QosClass, {"INTERACTIVE": 0, "COMPLETION": 1, "AGENT": 2, "BACKGROUND": 3}),
        (requests.FimMode, {"PSM": 0, "SPM": 1}),
    ],
)
def test_constants_have_their_wire_numbers(constants: type[enum.IntEnum], numbers: dict[str, int]) -> None:
    assert {member.name: member.value for member in constants} == numbers


def test_reasons_have_their_wire_texts() -> None:
    ended = {"unsubscribed", "lagged", "publisher closed", "purged"}
    assert {reason.value for reason in responses.SubEndedReason} == ended
    assert {reason.value for reason in events.ToolExpiredReason} == {"lease expired", "lease elapsed", "purged"}


def test_schema_refuses_a_number_without_a_size() -> None:
    with pytest.raises(TypeError):
        describe(int)
