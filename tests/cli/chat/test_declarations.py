import json
from pathlib import Path
from typing import Any

import pytest

from superfluid.cli.chat.declarations import read_tools, tool_names
from superfluid.errors import UsageError

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": FUNCTION},
        {"function": FUNCTION},
        FUNCTION,
        {"name": "f", "description": "d", "input_schema": {"type": "object"}},
    ],
)
@pytest.mark.parametrize("is_list", [True, False])
def test_declaration_may_have_any_of_the_known_forms(tmp_path: Path, tool: dict[str, Any], is_list: bool) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([tool] if is_list else tool))
    tools = read_tools(path)
    assert [json.loads(text) for text in tools] == [{"type": "function", "function": FUNCTION}]
    assert tool_names(tools) == "f"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold function declarations"),
        ('"f"', "must hold function declarations"),
        ('{"description": "d"}', "each with a name"),
        ('{"function": "f"}', "each with a name"),
    ],
)
def test_file_with_something_else_is_refused_by_name(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(content)
    with pytest.raises(UsageError) as raised:
        read_tools(path)
    assert str(path) in raised.value.message
    assert problem in raised.value.message


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^Cannot read .*absent: No such file or directory\.$"):
        read_tools(tmp_path / "absent")
