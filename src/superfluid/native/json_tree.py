"""JSON text to plain Python values and back, more strictly than the libraries do it. Pure.

Keys that occur twice are kept track of, because whether they matter depends on the schema. Large arrays of numbers
(media sent as JSON) are parsed by msgspec, which is several times faster but would let a repeated key pass.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from superfluid.native.schema import CodecError

_LARGE_CHARACTERS = 1 << 16
_LONG_ARRAY = re.compile(r"\[[0-9, \t\r\n]{1024,}\]")
_encoder = msgspec.json.Encoder()


class RepeatedKeys(dict[str, Any]):
    """An object that named some key more than once: ``repeated`` are those keys."""

    repeated: frozenset[str]


def parse_json(data: bytes | str) -> Any:
    """The value in ``data``. Raises CodecError on anything that is not JSON in UTF-8, NaN and infinities included."""
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise CodecError("the text is not UTF-8") from error
    if len(text) >= _LARGE_CHARACTERS:
        skeleton = _LONG_ARRAY.sub("[]", text)
        if len(skeleton) < len(text) // 2 and _is_strict(skeleton):
            try:
                return msgspec.json.decode(data if isinstance(data, bytes) else data.encode())
            except (ValueError, RecursionError):
                # The strict parser says what is wrong, and where.
                pass
    return _parse_strictly(text, _marked_object)


def format_json(value: Any) -> bytes:
    """Compact JSON, non-ASCII characters as they are, NaN and infinities as ``null``. Raises CodecError."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise CodecError("a text holds half of a surrogate pair") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"a field cannot be encoded ({type(error).__name__})") from error
    except RecursionError as error:
        raise CodecError("the value is nested too deeply") from error


def _parse_strictly(text: str, build_object: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    try:
        return json.loads(text, object_pairs_hook=build_object, parse_constant=_refuse_constant)
    except CodecError:
        raise
    except json.JSONDecodeError as error:
        raise CodecError(f"not valid JSON, line {error.lineno} column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise CodecError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise CodecError("a number has too many digits") from error


def _is_strict(skeleton: str) -> bool:
    """Whether a text without its long arrays of numbers is JSON with no key repeated in any object.

    A cut inside a text changes that text only. If the text is a key, it was no key of the schema.
    """
    try:
        _parse_strictly(skeleton, _unrepeated_object)
    except CodecError:
        return False
    return True


def _marked_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) == len(pairs):
        return whole
    marked = RepeatedKeys(whole)
    counts = Counter(key for key, _ in pairs)
    marked.repeated = frozenset(key for key, count in counts.items() if count > 1)
    return marked


def _unrepeated_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) != len(pairs):
        raise CodecError("a key occurs more than once")
    return whole


def _refuse_constant(name: str) -> NoReturn:
    raise CodecError(f"not valid JSON: {name} is no number")
