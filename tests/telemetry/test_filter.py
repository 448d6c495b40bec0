"""The filter grammar, row by row."""

import pytest

from superfluid.errors import InvalidValueError
from superfluid.telemetry.filter import DEBUG, ERROR, INFO, OFF, TRACE, WARN, parse_filter

TARGET = "superfluid_daemon::scheduler"


@pytest.mark.parametrize(
    ("directive", "level"),
    [
        ("info", INFO),
        ("WARN", WARN),
        ("Off", OFF),
        ("0", OFF),
        ("1", ERROR),
        ("2", WARN),
        ("3", INFO),
        ("4", DEBUG),
        ("5", TRACE),
        ("", ERROR),
        (",, ,", ERROR),
        (" info , ", INFO),
        ("info,debug", DEBUG),
    ],
)
def test_bare_level_is_the_default(directive: str, level: int) -> None:
    assert parse_filter(directive).level_for(TARGET) == level


@pytest.mark.parametrize(
    ("directive", "level"),
    [
        ("superfluid_daemon=debug,info", DEBUG),
        ("info,superfluid_daemon::scheduler=debug", DEBUG),
        ("superfluid_daemon::scheduler=warn,superfluid_daemon=debug", WARN),
        ("superfluid_daemon=debug,superfluid_daemon::scheduler=warn", WARN),
        ("superfluid_daemon::sched=trace", TRACE),
        ("superfluid_daemon::scheduler", TRACE),
        ("superfluid_daemon::scheduler=", TRACE),
        ("superfluid_daemon=warn,superfluid_daemon=error", ERROR),
        ("superfluid_daemon::inference=debug", OFF),
        ("superfluid_daemon::inference=debug,error", ERROR),
    ],
)
def test_longest_matching_target_wins(directive: str, level: int) -> None:
    assert parse_filter(directive).level_for(TARGET) == level


@pytest.mark.parametrize(
    ("directive", "level"),
    [
        ("info,[tick]=trace", INFO),
        ("info,superfluid_daemon[tick]=off", INFO),
        ("info,[generate{session=7,model=x}]=trace", INFO),
        ("[tick]=trace", ERROR),
        ("[tick]", ERROR),
    ],
)
def test_span_items_have_no_effect(directive: str, level: int) -> None:
    assert parse_filter(directive).level_for(TARGET) == level


@pytest.mark.parametrize(
    "directive",
    [
        "target=loud",
        "a=b=c",
        "[tick=debug",
        "tick]=debug",
        "=debug",
        "=",
        "info;debug",
        "a b=debug",
        "6=loud",
        "t=6",
        "é",
    ],
)
def test_anything_else_is_refused_by_name(directive: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_filter(f"info,{directive}")
    assert f"'{directive}'" in caught.value.message


def test_lowest_level_is_a_bound_for_every_target() -> None:
    parsed = parse_filter("warn,a=debug,b=off")
    assert parsed.lowest_level == DEBUG
    assert parse_filter("warn").lowest_level == WARN
    assert parse_filter("debug,a=warn").lowest_level == DEBUG
