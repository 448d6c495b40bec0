"""The JSON tool calls that models write, parsed as they stream. Pure; runs in the daemon.

A call is an object with ``name`` and ``arguments`` (or ``parameters``), in either order. Prose and code fences around
it, a comma left before a closing bracket and brackets missing at the end are put up with.
"""

import json
from collections.abc import Generator
from typing import Any, Final

from msgspec import Struct

_BLANKS: Final = " \t\r\n"
_ARGUMENT_KEYS: Final = ("arguments", "parameters")
_MAX_STARTS: Final = 16
"""How many braces in a block's prose are tried as the beginning of a call."""


class CallName(Struct, frozen=True):
    """The call's name is known."""

    name: str


class ArgumentsFragment(Struct, frozen=True):
    """The next piece of the arguments, JSON text."""

    text: str


class ParsedCall(Struct, frozen=True):
    """A whole call. Joined, the fragments handed out and ``tail`` are ``arguments``.

    ``is_valid`` is false if the name was read but the arguments are no JSON object; they are then as the model wrote
    them.
    """

    name: str
    arguments: str
    is_valid: bool
    tail: str = ""


class ToolCallStream:
    """Reads one block. The events of ``feed`` are a name, then fragments of the arguments."""

    def __init__(self) -> None:
        self._name: str | None = None
        self.is_announced = False
        """Whether ``feed`` has handed out the name."""
        self._arguments: list[str] = []
        self._sent_parts = 0
        self._is_streamed = True
        self._is_over = False
        self._closers: list[str] = []
        self._text: list[str] = []
        self._machine = self._read_call()
        next(self._machine)

    def feed(self, text: str) -> list[CallName | ArgumentsFragment]:
        self._text.append(text)
        send = self._machine.send
        for character in text:
            send(character)
        events: list[CallName | ArgumentsFragment] = []
        if self._name and not self.is_announced:
            self.is_announced = True
            events.append(CallName(self._name))
        if self.is_announced and self._is_streamed and len(self._arguments) > self._sent_parts:
            events.append(ArgumentsFragment("".join(self._arguments[self._sent_parts :])))
            self._sent_parts = len(self._arguments)
        return events

    def finish(self, *, is_closed: bool) -> ParsedCall | None:
        """The call, or ``None`` if the block holds none (and then no event was handed out).

        ``is_closed`` tells that the model ended the block itself; only then brackets missing inside the arguments are
        added: those of a reply that was cut off are unfinished, not sloppy.
        """
        if self.is_announced:
            return self._finish_announced(is_closed)
        call = _read_whole("".join(self._text))
        return None if call is None else ParsedCall(call[0], call[1], is_valid=True, tail=call[1])

    def _finish_announced(self, is_closed: bool) -> ParsedCall:
        assert self._name is not None
        written = "".join(self._arguments)
        if not self._is_streamed:
            plain = _plain_arguments(written)
            is_valid = plain is not None
            arguments = written if plain is None else plain
            return ParsedCall(self._name, arguments, is_valid, tail=arguments)
        tail = "".join(self._arguments[self._sent_parts :])
        if not written and (is_closed or self._is_over):
            return ParsedCall(self._name, "{}", is_valid=True, tail="{}")
        closers = "".join(reversed(self._closers)) if is_closed else ""
        if _is_object(written + closers):
            return ParsedCall(self._name, written + closers, is_valid=True, tail=tail + closers)
        return ParsedCall(self._name, written, is_valid=False, tail=tail)

    # The reader is a coroutine: it is sent one character at a time, and its place in the code is its state.

    def _read_call(self) -> Generator[None, str, None]:
        while (yield) != "{":
            pass
        character = yield from _skip_blanks()
        while character != "}":
            if character != '"':
                character = yield from _skip_blanks()
                continue
            key = yield from _read_string()
            while (yield from _skip_blanks()) != ":":
                pass
            character = yield from _skip_blanks()
            if key == "name" and character == '"' and self._name is None:
                self._name = yield from _read_string()
                character = yield from _skip_blanks()
            elif key in _ARGUMENT_KEYS and not self._arguments:
                self._is_streamed = character == "{"
                character = yield from self._read_value(character, self._arguments)
            else:
                character = yield from self._read_value(character, [])
        self._is_over = True
        while True:
            yield

    def _read_value(self, character: str, out: list[str]) -> Generator[None, str, str]:
        """Copies a value, less stray commas, into ``out``; returns the character behind it."""
        closers: list[str] = []
        if out is self._arguments:
            self._closers = closers
        held = ""
        while True:
            if not closers and (character in ",}]" or (out and character in _BLANKS)):
                return character if character not in _BLANKS else (yield from _skip_blanks())
            if held and character in _BLANKS:
                held += character
            elif character == "," and not held:
                held = character
            else:
                if held and character not in "}]":
                    out.append(held)
                held = ""
                out.append(character)
                if character == '"':
                    yield from _copy_string(out)
                elif character in "{[":
                    closers.append("}" if character == "{" else "]")
                elif character in "}]":
                    closers.pop()
                if not closers and character in '}]"':
                    return (yield from _skip_blanks())
            character = yield


def _skip_blanks() -> Generator[None, str, str]:
    while (character := (yield)) in _BLANKS:
        pass
    return character


def _copy_string(out: list[str]) -> Generator[None, str, None]:
    """Copies the rest of a string, its closing quote included."""
    while (character := (yield)) != '"':
        # A bare line break inside a string is no JSON, but models write it.
        out.append(character if character >= " " else json.dumps(character)[1:-1])
        if character == "\\":
            out.append((yield))
    out.append(character)


def _read_string() -> Generator[None, str, str]:
    """The value of a string whose opening quote was read."""
    raw = ['"']
    yield from _copy_string(raw)
    text = "".join(raw)
    try:
        value: str = json.loads(text)
    except ValueError:
        return text[1:-1]
    return value


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _plain_arguments(written: str) -> str | None:
    """Arguments that are not an object: models also write them as a string with the object in it, or as null."""
    try:
        value = json.loads(written) if written else None
    except (ValueError, RecursionError):
        return None
    if value is None:
        return "{}"
    return value if isinstance(value, str) and _is_object(value) else None


def _read_whole(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call that the stream did not recognize: in a ``function`` object, or behind a brace in
    prose."""
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            break
        try:
            value, _end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if (call := _call_of(value)) is not None:
            return call
        start = text.find("{", start + 1)
    return None


def _call_of(value: Any) -> tuple[str, str] | None:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    text = "{}" if arguments is None else text
    return (value["name"], text) if _is_object(text) else None
