"""JSON in and out of every dialect: bodies decoded with errors that name the field, members encoded. Pure."""

import re
from typing import Any, TypeVar

import msgspec

from superfluid.errors import InvalidRequestError

_T = TypeVar("_T")
_JSON_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
_PYTHON_TYPE = re.compile(r"\b(?:int|float|str|bool)\b")
_QUOTED = re.compile(r"`[^`]*`")
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def decode_body(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Raises InvalidRequestError: ``param`` names the field of a wrong type, the message the place where JSON ends."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except msgspec.DecodeError as error:
        raise _malformed(str(error), body) from error
    except RecursionError as error:
        raise InvalidRequestError("the request body is nested too deeply") from error


def _wrong_type(message: str) -> InvalidRequestError:
    # msgspec names Python's types, and the caller wrote JSON.
    text = _QUOTED.sub(lambda quoted: _PYTHON_TYPE.sub(lambda word: _JSON_TYPES[word[0]], quoted[0]), message)
    place = _PLACE.search(text)
    if place is None:
        return InvalidRequestError(f"the request body has the wrong form: {text}")
    path = place["path"] or None
    what = text[: place.start()]
    return InvalidRequestError(f"{path or 'the request body'}: {what[:1].lower()}{what[1:]}", param=path)


def _malformed(text: str, body: bytes) -> InvalidRequestError:
    if not body:
        return InvalidRequestError("the request body is empty; a JSON object is expected")
    where = "" if "(byte " in text else f" (in a body of {len(body)} bytes)"
    return InvalidRequestError(f"the request body is not valid JSON: {text.removeprefix('JSON is malformed: ')}{where}")
