"""``cache_control``: where it may be, what it may say, and which messages it pins."""

from typing import Any

import msgspec
import pytest

from superfluid.errors import InvalidRequestError
from superfluid.http.anthropic_messages import conversation
from superfluid.http.anthropic_types import MessagesBody

MINUTES_5 = 300_000
HOUR = 3_600_000
SHORT: dict[str, Any] = {"type": "ephemeral"}
LONG: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}


def _text(control: Any, text: str = "x") -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": control}


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _pins(**fields: Any) -> list[tuple[int, int]]:
    body = msgspec.convert({"messages": [{"role": "user", "content": "Hi"}], **fields}, MessagesBody)
    return [(pin.message, pin.ttl_ms) for pin in conversation(body).pins]


@pytest.mark.parametrize(
    ("fields", "pins"),
    [
        ({}, []),
        ({"messages": [_user(_text(None))]}, []),
        ({"messages": [_user(_text(SHORT))]}, [(0, MINUTES_5)]),
        ({"messages": [_user(_text({"type": "ephemeral", "ttl": "5m"}))]}, [(0, MINUTES_5)]),
        ({"system": [_text(LONG)]}, [(0, HOUR)]),
        ({"tools": [{**TOOL, "cache_control": LONG}], "system": [_text(SHORT)]}, [(0, HOUR), (0, MINUTES_5)]),
        ({"system": "s", "messages": [_user(_text(SHORT))]}, [(1, MINUTES_5)]),
        ({"system": "s", "cache_control": LONG}, [(1, HOUR)]),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                    _user(
                        {"type": "tool_result", "tool_use_id": "t", "content": [_text(LONG)]},
                        {"type": "tool_result", "tool_use_id": "u", "cache_control": LONG},
                        _text(SHORT),
                    ),
                ]
            },
            [(2, HOUR), (3, HOUR), (4, MINUTES_5)],
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [_text(SHORT)]},
                    {"role": "assistant", "content": [_text(SHORT)]},
                    {"role": "user", "content": "b"},
                ]
            },
            [(1, MINUTES_5), (1, MINUTES_5)],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [_text(SHORT)]}]},
            [(0, MINUTES_5)],
        ),
    ],
)
def test_mark_pins_the_prompt_through_its_message(fields: dict[str, Any], pins: list[tuple[int, int]]) -> None:
    assert _pins(**fields) == pins


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"system": [_text("ephemeral")]}, "system[0].cache_control: expected an object"),
        ({"system": [_text({"type": "persistent"})]}, "system[0].cache_control.type must be 'ephemeral'"),
        ({"system": [_text({})]}, "system[0].cache_control.type must be"),
        ({"system": [_text({**SHORT, "ttl": "2h"})]}, "system[0].cache_control.ttl must be '5m' or '1h'"),
        ({"system": [_text({**SHORT, "ttl": ["5m"]})]}, "ttl must be"),
        ({"system": [_text({**SHORT, "scope": "global"})]}, "a type and a ttl, and nothing else"),
        ({"system": [_text(SHORT, "")]}, "system[0].cache_control: empty text cannot have one"),
        ({"messages": [_user(_text(SHORT, ""))]}, "messages[0].content[0].cache_control: empty text"),
        ({"system": [_text(SHORT)], "messages": [_user(_text(LONG))]}, "'1h' must not come after one of '5m'"),
        ({"messages": [_user(*[_text(SHORT)] * 5)]}, "at most 4 blocks"),
        ({"messages": [_user(*[_text(SHORT)] * 4)], "cache_control": SHORT}, "at most 4 blocks"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "thinking", "thinking": "hm", "cache_control": SHORT}],
                    }
                ]
            },
            "thinking cannot have one",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "cache_control": SHORT}]}]},
            "thinking cannot have one",
        ),
    ],
)
def test_mark_that_means_nothing_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError) as failure:
        _pins(**fields)
    assert problem in failure.value.message


def test_four_marks_are_taken() -> None:
    assert len(_pins(messages=[_user(*[_text(LONG)] * 2, *[_text(SHORT)] * 2)])) == 4
