"""What the model is shown of a block: one text for each kind, made from its payload. Pure.

A change of these texts is a new ``VISIBILITY_VERSION``.
"""

from typing import Any, assert_never

import msgspec

from superfluid.domain.events import BlockKind

BODY_BYTES = 16_384
"""How much of a diff or of an artifact's content is shown."""
_CUT = "\n…[truncated]"


def block_text(kind: BlockKind, payload: str) -> str:
    """Nothing for kinds that are not shown. A payload that is no JSON object has only empty fields, and so is a field
    that holds no text."""
    match kind:
        case BlockKind.FILE_DIFF:
            fields = _fields(payload)
            return f"```diff\n# {_text(fields, 'path')}\n{_line_end(_capped(_text(fields, 'diff')))}```"
        case BlockKind.ARTIFACT:
            fields = _fields(payload)
            return f"[artifact: {_text(fields, 'title')}]\n{_capped(_text(fields, 'content'))}"
        case BlockKind.CITATION:
            return _citation(_fields(payload))
        case BlockKind.DIAGNOSTIC:
            return _diagnostic(_fields(payload))
        case BlockKind.WORKSPACE_REF:
            return f"@{_text(_fields(payload), 'path')}"
        case BlockKind.PROGRESS | BlockKind.IMAGE:
            # An image's tokens come from its encoder, with a request of its own.
            return ""
        case _:
            assert_never(kind)


def _citation(fields: dict[str, Any]) -> str:
    source = f"[citation] {_text(fields, 'title')} — {_text(fields, 'url')}"
    quote = _text(fields, "quote")
    return f"{source}\n> {quote}" if quote else source


def _diagnostic(fields: dict[str, Any]) -> str:
    path, line = _text(fields, "path"), fields.get("line")
    number = f"{line}:" if isinstance(line, str | int) and not isinstance(line, bool) and line != "" else ""
    place = f"{path}:{number} " if path else ""
    return f"[diagnostic {_text(fields, 'severity')}] {place}{_text(fields, 'message')}"


def _fields(payload: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _line_end(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _capped(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= BODY_BYTES:
        return text
    return encoded[:BODY_BYTES].decode(errors="ignore") + _CUT
