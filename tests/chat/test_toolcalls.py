"""Tool calls in JSON, as they stream."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.toolcalls import ArgumentsFragment, CallName, ParsedCall, ToolCallStream


def _read(
    text: str, size: int = 1, *, is_closed: bool = True
) -> tuple[list[CallName | ArgumentsFragment], ParsedCall | None]:
    stream = ToolCallStream()
    events = [event for start in range(0, len(text), size) for event in stream.feed(text[start : start + size])]
    return events, stream.finish(is_closed=is_closed)


def _call(text: str, *, is_closed: bool = True) -> tuple[str, str, bool] | None:
    """Name, arguments, validity; checks that what was streamed adds up to them."""
    events, call = _read(text, is_closed=is_closed)
    if call is None:
        assert events == []
        return None
    fragments = [event.text for event in events if isinstance(event, ArgumentsFragment)]
    assert "".join(fragments) + call.tail == call.arguments
    assert [event.name for event in events if isinstance(event, CallName)] in ([call.name], [])
    assert not events or isinstance(events[0], CallName)
    return call.name, call.arguments, call.is_valid


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_arguments = st.dictionaries(st.text(max_size=5), _json, max_size=4)


@given(st.text(min_size=1, max_size=8), _arguments, st.booleans(), st.sampled_from([None, 1]), st.integers(1, 9))
def test_well_formed_call_is_read_at_any_chunking(
    name: str, arguments: dict[str, object], is_name_first: bool, indent: int | None, size: int
) -> None:
    items = [("name", name), ("arguments", arguments)]
    text = "\n" + json.dumps(dict(items if is_name_first else items[::-1]), indent=indent) + "\n"
    events, call = _read(text, size)
    assert call is not None
    assert call.is_valid
    assert (call.name, json.loads(call.arguments)) == (name, arguments)
    assert "".join(event.text for event in events if isinstance(event, ArgumentsFragment)) == call.arguments


def test_name_is_out_before_the_arguments_begin_and_they_come_as_written() -> None:
    stream = ToolCallStream()
    assert stream.feed('{"name": "look", "arg') == [CallName("look")]
    assert stream.feed('uments": {"at": "s') == [ArgumentsFragment('{"at": "s')]
    assert stream.feed('ky"}') == [ArgumentsFragment('ky"}')]
    assert stream.feed("}") == []
    assert stream.finish(is_closed=True) == ParsedCall("look", '{"at": "sky"}', is_valid=True)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', '{"a": 1}'),
        ('I will call it: {"name": "f", "arguments": {"a": 1}} now', '{"a": 1}'),
        ('with {braces}: {"name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": [1, 2, ], },}', '{"a": [1, 2]}'),
        ('{"name": "f", "arguments": {"a": "1, }"}}', '{"a": "1, }"}'),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"id": 7, "type": "function", "name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": {}}', "{}"),
        ('{"name": "f", "arguments": {"a": "two\nlines"}}', '{"a": "two\\nlines"}'),
        ('{"name": "f", "arguments": {"a": {"name": "g"}}}', '{"a": {"name": "g"}}'),
    ],
)
def test_sloppy_call_is_read(text: str, arguments: str) -> None:
    assert _call(text) == ("f", arguments, True)


@pytest.mark.parametrize("cut", ['{"name": "f", "arguments": {"a": [1', '{"name": "f", "arguments": {"a": [1]'])
def test_brackets_missing_in_a_closed_block_are_added(cut: str) -> None:
    assert _call(cut) == ("f", '{"a": [1]}', True)


@pytest.mark.parametrize(
    ("cut", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": [1', '{"a": [1'),
        ('{"name": "f", "arguments": {"a": "b', '{"a": "b'),
        ('{"name": "f", "arg', ""),
        ('{"name": "f", "arguments": [1]}', "[1]"),
        ('{"name": "f", "arguments": {a: 1}}', "{a: 1}"),
        ('{"name": "f", "arguments": 12}', "12"),
    ],
)
def test_arguments_that_are_no_object_are_handed_out_raw_and_invalid(cut: str, arguments: str) -> None:
    assert _call(cut, is_closed=False) == ("f", arguments, False)


def test_outer_bracket_missing_at_the_end_does_not_matter() -> None:
    assert _call('{"name": "f", "arguments": {"a": 1}', is_closed=False) == ("f", '{"a": 1}', True)


@pytest.mark.parametrize(
    "text",
    ["", "no call", "{}", "{", '{"name": 5}', '{"name": ""}', '{"name": "f', "[1, 2]", '{"arguments": {}}', "{" * 5000],
)
def test_block_without_a_call_is_none(text: str) -> None:
    assert _call(text) is None


@given(st.text(alphabet='{}[]",:\\ abname', max_size=40), st.booleans())
def test_any_text_is_read_without_failing(text: str, is_closed: bool) -> None:
    _call(text, is_closed=is_closed)
