"""Tool declarations as clients of the session API write them, brought into one form. Pure."""

import json
from typing import Any

from superfluid.errors import SessionRefusedError

Declaration = dict[str, Any]


def parse_declarations(tools: tuple[str, ...]) -> list[Declaration]:
    """OpenAI function tools, in order. Raises SessionRefusedError naming the first text that declares no function.

    Accepted are a function tool, a bare function, and a tool with an ``input_schema``. Key order is kept, since the
    model sees it.
    """
    return [_parse(index, text) for index, text in enumerate(tools)]


def _parse(index: int, text: str) -> Declaration:
    refusal = SessionRefusedError(f"tool {index} is not a function declaration")
    try:
        tool = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal from error
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise refusal
    if "function" in tool:
        if not _is_function(tool["function"]):
            raise refusal
        return tool
    function = _bare_function(tool)
    if not _is_function(function):
        raise refusal
    return {"type": "function", "function": function}


def _bare_function(tool: Declaration) -> Declaration:
    if "type" in tool:
        # The last key takes the place that ``type`` leaves, as the reference's clients saw it rendered.
        keys = [key for key in tool if key != "type"]
        position = list(tool).index("type")
        if position < len(keys):
            keys.insert(position, keys.pop())
        tool = {key: tool[key] for key in keys}
    if "input_schema" not in tool:
        return tool
    return {
        "name": tool.get("name"),
        "description": tool.get("description", ""),
        "parameters": tool["input_schema"],
    }


def _is_function(function: Any) -> bool:
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and bool(function["name"])
        and isinstance(function.get("parameters", {}), dict)
    )
