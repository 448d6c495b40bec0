"""Where a model's template runs: Jinja's sandbox with the helpers templates expect, a deadline and bounds. Runs in the
daemon.

A template comes with a model file and is not trusted. A Jinja environment bounds neither time nor memory, and a thread
cannot be killed, so the template is rewritten before it is compiled (``instrument``): every loop body, loop filter and
macro body first looks at the clock, and everything that joins text passes through here. What remains unbounded is work
inside one filter or one method on data that is already large: at most some seconds and hundreds of megabytes, before
the next loop body ends it.
"""

import datetime
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from superfluid.chat.instrument import TurnMarks, instrument
from superfluid.errors import TemplateRefusedError

_MAX_TEXT: Final = 64 * 1024 * 1024
_MAX_INTEGER_BITS: Final = 4096
_MAX_WIDTH: Final = 10_000
_WIDE_FORMAT: Final = re.compile(r"\d{5,}|\*|\{[^}]*\{")
_PADDING_METHODS: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_REMOVED_FILTERS: Final = ("urlize", "pprint", "xmlattr", "wordwrap", "filesizeformat", "striptags")

_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a template's own code may raise. Anything else is our mistake."""


class _Refusal(Exception):  # noqa: N818 - it is the template's way to speak, not an error of ours
    """The template called ``raise_exception``."""


class _GenerationTag(Extension):
    """``{% generation %}`` marks what a trainer learns from; it means nothing here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rendering(threading.local):
    """What the template running in this thread may still do."""

    deadline: float = 0.0
    marks: TurnMarks | None = None


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates. Thread-safe: several renderings may run at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self,
        *,
        loaded_at: datetime.datetime,
        render_seconds: float,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``loaded_at`` is what templates take for now, so that yesterday's conversation renders to the same tokens
        today.

        ``render_seconds`` bounds the processor time of one rendering, not the wall's, which depends on the neighbours.
        """
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            autoescape=False,
            cache_size=0,
        )
        self._rendering = _Rendering()
        self._render_seconds = render_seconds
        self._cpu_clock = cpu_clock
        self.concat = self.join_text  # type: ignore[method-assign]
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        for name in ("center", "indent"):
            self.filters[name] = _bounded_width(self.filters[name])
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = loaded_at.strftime

    def compile_template(self, source: str) -> jinja2.Template:
        """Raises TemplateRefusedError if ``source`` is no template."""
        try:
            tree = instrument(self.parse(source), self)
            return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, TypeError) as error:
            raise TemplateRefusedError(f"the model's chat template does not compile: {_short(error)}") from error

    def render(
        self,
        template: jinja2.Template,
        variables: Mapping[str, Any],
        marks: TurnMarks,
        seconds: float | None = None,
    ) -> str:
        """The rendering, with ``marks``'s marks in it. ``seconds`` replaces the environment's bound.

        Raises TemplateRefusedError.
        """
        self._rendering.deadline = self._cpu_clock() + (self._render_seconds if seconds is None else seconds)
        self._rendering.marks = marks
        try:
            context = template.new_context(dict(variables))
            return self.join_text(template.root_render_func(context))
        except _Refusal as refusal:
            raise TemplateRefusedError(f"the model's chat template refuses the conversation: {refusal}") from None
        except _TEMPLATE_FAULTS as error:
            raise TemplateRefusedError(f"the model's chat template failed: {_short(error)}") from error
        finally:
            self._rendering.marks = None

    # ---- called from the instrumented template

    def tick(self) -> bool:
        """Ends a rendering that has run too long."""
        if self._cpu_clock() > self._rendering.deadline:
            raise SecurityError("it took too long")
        return True

    def begin_turn(self, loop: int, item: object) -> str:
        """At the start of a loop body: a mark, if the loop runs over messages."""
        self.tick()
        marks = self._rendering.marks
        return marks.begin(loop, item) if marks is not None else ""

    def end_turns(self, loop: int) -> str:
        marks = self._rendering.marks
        return marks.end(loop) if marks is not None else ""

    def join_text(self, parts: Iterable[Any]) -> str:
        """Joins texts up to a bound."""
        texts: list[str] = []
        size = 0
        for part in parts:
            text = part if isinstance(part, str) else str(part)
            size += len(text)
            if size > _MAX_TEXT:
                raise SecurityError("it writes too much text")
            texts.append(text)
        return "".join(texts)

    def concatenate(self, *parts: Any) -> str:
        """Jinja's ``~``."""
        return self.join_text(parts)

    # ---- hooks of the sandbox

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates collect and take messages in lists. All lists they can reach were made for this rendering.
        return (attr in {"append", "pop"} and isinstance(obj, list)) or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif isinstance(left, int) and isinstance(right, int):
            _check_integers(operator, left, right)
        elif operator in "+*":
            _check_size(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, obj.__name__, args)
        return super().call(context, obj, *args, **kwargs)


def _raise_exception(message: object = "") -> NoReturn:
    raise _Refusal(_short(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: nothing is escaped for HTML, keys keep their order."""
    if indent is not None and indent > 16:
        raise SecurityError("it asks for too wide an indentation")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_list_of_iterator,
    )


def _list_of_iterator(value: Any) -> list[Any]:
    """Filters like ``map`` yield iterators, which templates write as lists."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _bounded_width(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(value: Any, width: Any = 4, *args: Any, **kwargs: Any) -> Any:
        if isinstance(width, int) and width > _MAX_WIDTH:
            raise SecurityError("it asks for too wide a field")
        return function(value, width, *args, **kwargs)

    return bounded


def _check_format(template: str) -> None:
    if _WIDE_FORMAT.search(template):
        raise SecurityError("it asks for too wide a field")


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
    if bits > _MAX_INTEGER_BITS:
        raise SecurityError("it computes too large a number")


def _check_size(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        if isinstance(left, int):
            left, right = right, left
        size = len(left) * right if hasattr(left, "__len__") and isinstance(right, int) else 0
    else:
        size = len(left) + len(right) if hasattr(left, "__len__") and hasattr(right, "__len__") else 0
    if size > _MAX_TEXT:
        raise SecurityError("it writes too much text")


def _check_method(owner: str, name: str, args: tuple[Any, ...]) -> None:
    if name in _PADDING_METHODS and args and isinstance(args[0], int) and args[0] > _MAX_WIDTH:
        raise SecurityError("it asks for too wide a field")
    if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_size("*", args[1], owner.count(args[0]))
    if name == "join" and args and isinstance(args[0], list | tuple):
        _check_size("*", owner, len(args[0]))


def _short(message: object) -> str:
    text = " ".join(str(message).split())
    return text if len(text) <= 200 else text[:199] + "…"
