"""The forms a tool declaration may have, and the one it gets."""

import json

import pytest

from superfluid.errors import SessionRefusedError
from superfluid.sessions.declarations import parse_declarations

PARAMETERS = '{"type":"object"}'


def parse(text: str) -> str:
    """With key order, since the model sees it."""
    return json.dumps(parse_declarations((text,))[0], separators=(",", ":"))


def test_function_tool_is_kept_as_given() -> None:
    text = '{"function":{"parameters":{},"name":"f","strict":true},"type":"function","x":1}'
    assert parse(text) == text


def test_function_without_a_type_is_kept_as_given() -> None:
    assert parse('{"function":{"name":"f"}}') == '{"function":{"name":"f"}}'


def test_bare_function_is_wrapped() -> None:
    text = '{"name":"f","description":"d","parameters":{"type":"object"}}'
    assert parse(text) == f'{{"type":"function","function":{text}}}'


def test_type_of_a_bare_function_is_removed_and_the_last_key_takes_its_place() -> None:
    text = '{"type":"function","name":"f","description":"d","parameters":{}}'
    assert parse(text) == '{"type":"function","function":{"parameters":{},"name":"f","description":"d"}}'
    last = '{"name":"f","parameters":{},"type":"function"}'
    assert parse(last) == '{"type":"function","function":{"name":"f","parameters":{}}}'


def test_input_schema_becomes_parameters_and_everything_else_is_left_out() -> None:
    text = f'{{"input_schema":{PARAMETERS},"name":"f","cache_control":1}}'
    assert parse(text) == (
        f'{{"type":"function","function":{{"name":"f","description":"","parameters":{PARAMETERS}}}}}'
    )
    described = f'{{"name":"f","description":"d","input_schema":{PARAMETERS}}}'
    assert '"description":"d"' in parse(described)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"f"',
        "1",
        "{}",
        '{"name":""}',
        '{"name":1}',
        '{"type":"custom","name":"f"}',
        '{"type":null,"name":"f"}',
        '{"function":"f"}',
        '{"function":{}}',
        '{"function":{"name":""}}',
        '{"function":{"name":"f","parameters":[]}}',
        '{"name":"f","parameters":"x"}',
        '{"name":"f","input_schema":[]}',
        '{"input_schema":{}}',
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused_by_its_index(text: str) -> None:
    with pytest.raises(SessionRefusedError, match="tool 1 is not a function declaration"):
        parse_declarations(('{"name":"f"}', text, "also bad"))


def test_no_tools_are_no_declarations() -> None:
    assert parse_declarations(()) == []
