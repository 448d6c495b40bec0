"""The page for people who write programs against the session API, held against the protocol."""

import re
from pathlib import Path

from superfluid.native import schema
from superfluid.native.protocol import Request, Response
from superfluid.native.schema import Record, describe

PAGE = (Path(__file__).parents[2] / "docs" / "session-api.md").read_text()
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| (.*?) ?\| (.*) \|$", re.MULTILINE)


def records(union: object) -> tuple[Record, ...]:
    shape = describe(union)
    assert isinstance(shape, schema.Variants)
    return shape.records


def test_page_lists_every_request_by_number_with_its_fields() -> None:
    listed = [(int(number), name, re.findall(r"`([^`]*)`", fields)) for number, name, fields, _ in ROW.findall(PAGE)]
    expected = [
        (
            number,
            record.name,
            [
                f"{field.name}: opt" if isinstance(field.shape, schema.OptionalOf) else field.name
                for field in record.fields
            ],
        )
        for number, record in enumerate(records(Request))
    ]
    assert listed == expected


def test_page_names_only_replies_that_exist() -> None:
    names = {record.name for record in records(Response)}
    for _, name, _, replies in ROW.findall(PAGE):
        mentioned = set(re.findall(r"`(\w+)`", replies))
        assert mentioned, name
        assert mentioned <= names, name
