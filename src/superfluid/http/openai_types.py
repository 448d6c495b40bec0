"""Wire types of the OpenAI dialect's requests: what is read, and of which JSON type. Pure.

Anything else in a body is ignored. ``null`` and absent mean the same. Ranges and meaning are checked where the types
are translated.
"""

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from superfluid.errors import InvalidRequestError

_T = TypeVar("_T")
_JSON_TYPES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}
_PYTHON_TYPE = re.compile(r"\b(?:int|float|str|bool)\b")
_QUOTED = re.compile(r"`[^`]*`")
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


class StreamOptions(Struct, frozen=True):
    """The usage is in the last chunk either way."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(Struct, frozen=True, kw_only=True):
    """What both generating routes read."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None


class ContentPart(Struct, frozen=True):
    """``text`` is checked only if the part is one of text: parts of other types may carry anything."""

    type: str
    text: Any = None


class FunctionCall(Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class AssistantCall(Struct, frozen=True):
    function: FunctionCall
    id: str | None = None


class ChatMessage(Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AssistantCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``. ``tool_choice`` may be malformed, which is then ``auto``."""

    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    fim_mode: str | None = None


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
