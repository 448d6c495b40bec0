"""The access line, field by field."""

import logging
import re
from typing import Any

import msgspec
import pytest

from superfluid.sessions.interface import GenerationTiming
from superfluid.telemetry.access_log import format_access_line, log_generation

TIMING = GenerationTiming(
    route="POST /v1/chat/completions",
    model="Qwen3-4B",
    prompt_tokens=812,
    cached_tokens=640,
    completion_tokens=256,
    first_token_seconds=0.312,
    decode_tokens=255,
    decode_seconds=3.405,
    total_seconds=3.792,
    finish="stop",
)


def line(**changes: Any) -> str:
    return format_access_line(msgspec.structs.replace(TIMING, **changes))


def field(text: str, name: str) -> str:
    match = re.search(rf" {name}=(\S+)", text)
    assert match is not None
    return match[1]


def test_line_has_every_field_in_order() -> None:
    assert line() == (
        "<-- 200 POST /v1/chat/completions model=Qwen3-4B prompt=812 cached=640 completion=256 ttft=312ms"
        " prefill=551 tok/s decode=74.9 tok/s total=3792ms finish=stop"
    )


def test_route_marker_is_printed_behind_the_path() -> None:
    assert line(route="POST /v1/chat/completions (stream)").startswith(
        "<-- 200 POST /v1/chat/completions (stream) model="
    )


def test_generation_without_a_delivery_has_no_rates_and_ttft_zero() -> None:
    text = line(first_token_seconds=None, decode_seconds=None, decode_tokens=0)
    assert " ttft=0ms prefill=- tok/s decode=- tok/s total=" in text


@pytest.mark.parametrize(("prompt", "cached"), [(10, 10), (10, 12), (0, 0)])
def test_fully_warm_prompt_has_no_prefill_rate_and_keeps_its_cached_value(prompt: int, cached: int) -> None:
    text = line(prompt_tokens=prompt, cached_tokens=cached)
    assert field(text, "prefill") == "-"
    assert field(text, "cached") == str(cached)


def test_first_token_in_no_time_has_no_prefill_rate() -> None:
    assert field(line(first_token_seconds=0.0), "prefill") == "-"


@pytest.mark.parametrize(
    ("tokens", "seconds", "rate"),
    [
        (0, 1.0, "-"),
        (5, 0.0, "-"),
        (5, None, "-"),
        (101, 0.1, "-"),
        (100, 0.1, "1000.0"),
        (1, 3.0, "0.3"),
    ],
)
def test_decode_rate_needs_tokens_and_a_span_that_can_be_measured(tokens: int, seconds: float, rate: str) -> None:
    assert field(line(decode_tokens=tokens, decode_seconds=seconds), "decode") == rate


def test_unknown_finish_is_a_dash() -> None:
    assert line(finish="").endswith(" finish=-")


def test_line_is_logged_at_info_to_the_inference_target(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_generation(TIMING)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("superfluid_daemon::inference", "INFO")
    assert record.getMessage() == line()
