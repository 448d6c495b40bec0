"""Where messages begin in a rendering."""

import datetime
from typing import Any

import pytest

from superfluid.chat.instrument import MarkedText, TurnMarks
from superfluid.chat.sandbox import TemplateEnvironment

_SIGN = "\U000f0000"


def _render(source: str, count: int = 3) -> MarkedText:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"m{index}"} for index in range(count)]
    environment = TemplateEnvironment(loaded_at=datetime.datetime(2026, 1, 1), render_seconds=5.0)
    marks = TurnMarks({id(message): index for index, message in enumerate(messages)}, _SIGN)
    return marks.read(environment.render(environment.compile_template(source), {"messages": messages}, marks))


def _spans(source: str, count: int = 3) -> list[str] | None:
    marked = _render(source, count)
    ends = marked.message_ends(count)
    assert _SIGN not in marked.text
    return None if ends is None else [marked.text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


_LOOP = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        _LOOP + "header",
        "{% if true %}" + _LOOP + "{% endif %}header",
        "{% for m in messages | list %}<{{ m.content }}{{ '>' }}{% endfor %}header",
        "{% for m in messages %}{{ '<' }}{% for x in [m.content] %}{{ x }}{% endfor %}>{% endfor %}",
        "{% for m in messages[::-1] %}{% endfor %}" + _LOOP,
        "{% for m in messages %}{% endfor %}" + _LOOP + "header",
        "{% for m in messages %}{% for later in messages[loop.index:] %}{% endfor %}"
        "{% for old in messages[:loop.index0] %}{% endfor %}<{{ m.content }}>{% endfor %}",
        "{% for m in messages %}{% if loop.last or loop.nextitem %}<{{ m.content }}>{% endif %}{% endfor %}",
        "{% macro write(m) %}<{{ m.content }}>{% endmacro %}{% for m in messages %}{{ write(m) }}{% endfor %}",
    ],
)
def test_spans_of_a_turn_loop_are_its_turns(source: str) -> None:
    assert _spans(source) == ["<m0>", "<m1>", "<m2>"]


def test_spans_of_a_first_message_outside_the_loop_begin_with_the_text() -> None:
    source = "start <{{ messages[0].content }}>{% for m in messages[1:] %}<{{ m.content }}>{% endfor %}header"
    assert _spans(source) == ["start <m0>", "<m1>", "<m2>"]


def test_spans_of_a_default_turn_belong_to_the_first_message() -> None:
    source = "{% for m in messages %}{% if loop.first %}<default>{% endif %}<{{ m.content }}>{% endfor %}"
    assert _spans(source) == ["<default><m0>", "<m1>", "<m2>"]


def test_spans_of_a_message_that_is_not_written_are_empty() -> None:
    source = "{% for m in messages %}{% if m.content != 'm1' %}<{{ m.content }}>{% endif %}{% endfor %}"
    assert _spans(source) == ["<m0>", "", "<m2>"]


def test_spans_without_a_turn_loop_are_unknown() -> None:
    assert _spans("{% for i in range(3) %}<{{ messages[i].content }}>{% endfor %}") is None
    assert _spans("{{ messages | map(attribute='content') | join }}") is None


def test_captured_text_carries_no_marks_the_template_could_see() -> None:
    source = "{% set x %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ x | length }}" + _LOOP
    assert _render(source).text == "6<m0><m1><m2>"


def test_loop_ended_early_still_ends() -> None:
    source = "{% for m in messages %}<{{ m.content }}>{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}header"
    marked = _render(source)
    assert marked.text[: marked.end] == "<m0><m1>"
