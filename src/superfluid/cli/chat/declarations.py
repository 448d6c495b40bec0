"""Reads function declarations for the model from a JSON file, in any of the forms that the server takes."""

import json
from pathlib import Path

from superfluid.errors import UsageError


def read_tools(path: Path) -> tuple[str, ...]:
    """The declarations in a JSON file: a list of functions, or one. Raises UsageError if it holds something else."""
    try:
        found = json.loads(path.expanduser().read_bytes())
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error
    listed = found if isinstance(found, list) else [found]
    return tuple(json.dumps(_declaration(tool, path), ensure_ascii=False) for tool in listed)


def _declaration(tool: object, path: Path) -> dict[str, object]:
    """In the form with ``function``; the server checks the rest."""
    if not isinstance(tool, dict):
        raise UsageError(f"{path} must hold function declarations.")
    if "input_schema" in tool:
        tool = {key: value for key, value in tool.items() if key != "input_schema"} | {
            "parameters": tool["input_schema"]
        }
    function = tool.get("function", {key: value for key, value in tool.items() if key != "type"})
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UsageError(f"{path} must hold function declarations, each with a name.")
    return {"type": "function", "function": function}


def tool_names(tools: tuple[str, ...]) -> str:
    """Of declarations that ``read_tools`` gave."""
    return ", ".join(json.loads(tool)["function"]["name"] for tool in tools)
