"""The sandbox of chat templates: helpers, deadline, bounds."""

import datetime
import itertools

import pytest

from superfluid.chat.instrument import TurnMarks
from superfluid.chat.sandbox import TemplateEnvironment
from superfluid.errors import TemplateRefusedError

_LOADED_AT = datetime.datetime(2026, 3, 4, 5, 6)


def _environment() -> TemplateEnvironment:
    """Its clock advances by a millisecond a look, so that a deadline is a number of looks."""
    looks = itertools.count()
    return TemplateEnvironment(loaded_at=_LOADED_AT, render_seconds=1.0, cpu_clock=lambda: next(looks) / 1000)


def _render(source: str, **variables: object) -> str:
    environment = _environment()
    return environment.render(environment.compile_template(source), variables, TurnMarks({}, ""))


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(99999) if a < 0 %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f(n) %}{% if n %}{% set x = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{% set y = f(40) %}",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        "{% macro f(n) %}{% if n %}{% call m() %}{{ f(n - 1) }}{% endcall %}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for a in [[1], [1]] recursive %}{{ loop(range(99999)) }}{{ loop([a, a]) }}{% endfor %}",
        "{% set x %}{% for a in range(99999) %}{% endfor %}{% endset %}",
    ],
)
def test_template_that_loops_is_refused_at_the_deadline(source: str) -> None:
    with pytest.raises(TemplateRefusedError, match=r"too long|recursion depth"):
        _render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * ['a'] }}",
        "{{ 9 ** (9 ** (9 ** 9)) }}",
        "{% set s = namespace(x='a' * 999) %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "{% set s = namespace(x='a' * 999) %}{% for i in range(99) %}{% set s.x = s.x + s.x %}{% endfor %}",
        "{% set s = namespace(x='a' * 999) %}{% for i in range(99) %}"
        "{% set s.x %}{{ s.x }}{{ s.x }}{% endset %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | indent(999999999) }}",
        "{{ [[[]]] | tojson(indent=999999999) }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
        "{{ ('a' * 99999).join(range(99999) | map('string') | list) }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_template_that_asks_for_too_much_memory_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefusedError):
        _render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ x.update({1: 2}) }}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ [][1] | upper + {}['a'] }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_template_that_fails_is_refused_with_one_sentence(source: str) -> None:
    with pytest.raises(TemplateRefusedError) as caught:
        _render(source, x={})
    assert "\n" not in caught.value.message


def test_template_that_raises_is_refused_with_its_own_words() -> None:
    with pytest.raises(TemplateRefusedError, match="Roles must alternate"):
        _render("{{ raise_exception('Roles must alternate') }}")


@pytest.mark.parametrize("source", ["{% if %}", "{% unknown %}", "{{ x", "{% for x in y %}"])
def test_template_that_does_not_compile_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefusedError, match="does not compile"):
        _environment().compile_template(source)


def test_tojson_escapes_nothing_for_html_and_keeps_the_order_of_keys() -> None:
    assert _render("{{ x | tojson }}", x={"b": "<é>", "a": [1, None, True]}) == '{"b": "<é>", "a": [1, null, true]}'
    assert _render("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'


def test_tojson_of_a_filtered_list_is_a_list() -> None:
    assert _render("{{ x | map(attribute='a') | tojson }}", x=[{"a": 1}, {"a": 2}]) == "[1, 2]"


def test_now_is_the_time_of_loading() -> None:
    assert _render("{{ strftime_now('%Y-%m-%d') }}") == "2026-03-04"


def test_generation_tag_and_loop_controls_are_understood() -> None:
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert _render("{% generation %}a{% endgeneration %}" + loop) == "a01"


def test_blocks_are_trimmed_as_the_templates_expect() -> None:
    assert _render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_lists_can_be_appended_to_and_popped_from() -> None:
    assert _render("{% set x = [0] %}{% set _ = x.append(1) %}{{ x.pop() }}{{ x }}") == "1[0]"
