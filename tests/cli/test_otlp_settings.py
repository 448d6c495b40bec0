from typing import Any

import pytest

from superfluid.cli.otlp_settings import otlp_config
from superfluid.config import OtlpConfig
from superfluid.errors import UsageError

GIVEN: dict[str, Any] = {
    "endpoint": None,
    "metrics": None,
    "headers": (),
    "service_name": "superfluid",
    "span_filter": "info",
    "queue": 8192,
    "batch_ms": 1000.0,
    "timeout_ms": 5000.0,
    "interval_ms": 15_000.0,
}


def settings(**changes: Any) -> OtlpConfig:
    return otlp_config(**{**GIVEN, **changes})


@pytest.mark.parametrize(
    ("given", "traces"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318//", "http://127.0.0.1:4318/v1/traces"),
        ("http://host/base/", "http://host/base/v1/traces"),
        ("http://host/v1/traces", "http://host/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("HTTP://host", "HTTP://host/v1/traces"),
    ],
)
def test_endpoint_gets_the_path_that_collectors_expect(given: str, traces: str) -> None:
    assert settings(endpoint=given).traces_url == traces


def test_metrics_address_gets_its_path() -> None:
    assert settings(metrics="http://host:4318/").metrics_url == "http://host:4318/v1/metrics"


@pytest.mark.parametrize("flag", ["endpoint", "metrics"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("https://host:4318", "collector on this machine"),
        ("HTTPS://host", "collector on this machine"),
        ("host:4318", "such as http://127.0.0.1:4318"),
        ("http://", "such as http://127.0.0.1:4318"),
        ("http://:4318", "such as http://127.0.0.1:4318"),
        ("http://host:70000", "such as http://127.0.0.1:4318"),
        ("http://host:port", "such as http://127.0.0.1:4318"),
        ("http://[::1", "such as http://127.0.0.1:4318"),
        ("http://ho st", "such as http://127.0.0.1:4318"),
        ("ftp://host", "such as http://127.0.0.1:4318"),
        ("http://host?x=1", "query"),
        ("http://me:secret@host", "--otlp-header"),
    ],
)
def test_address_that_cannot_be_pushed_to_is_refused(flag: str, given: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        settings(**{flag: given})
    assert refusal.value.param == f"--otlp-{flag}"
    assert said in refusal.value.message
    assert "secret" not in refusal.value.message


def test_headers_are_cut_at_the_first_equals_sign_and_trimmed() -> None:
    assert settings(headers=(" x-key = a=b ", "empty=")).headers == (("x-key", "a=b"), ("empty", ""))


@pytest.mark.parametrize("given", ["no-equals", "=value", "bad name=x", "x=sécret", "x=sec\r\nret", "ü=x"])
def test_header_that_http_cannot_carry_is_refused_without_its_value(given: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE") as refusal:
        settings(headers=(given,))
    assert "ret" not in refusal.value.message


@pytest.mark.parametrize("name", ["queue", "batch_ms", "timeout_ms", "interval_ms"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_number_that_is_not_above_zero_is_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match="above 0") as refusal:
        settings(**{name: value})
    assert refusal.value.param == f"--otlp-{name.replace('_', '-')}"


def test_filter_that_does_not_parse_is_refused() -> None:
    with pytest.raises(UsageError, match="not a log filter directive"):
        settings(span_filter="a b c")


def test_empty_service_name_is_refused() -> None:
    with pytest.raises(UsageError, match="service-name"):
        settings(service_name=" ")
