"""The error table: no leaf without a row, and the two shapes an error takes."""

from collections.abc import Iterator

import msgspec
import pytest

from superfluid import errors
from superfluid.http.errors import (
    ERROR_ROWS,
    anthropic_error_body,
    error_row,
    openai_error_body,
    openai_error_frame,
    path_error_body,
    retry_headers,
)


def _leaves(node: type[errors.SuperfluidError]) -> Iterator[type[errors.SuperfluidError]]:
    children = node.__subclasses__()
    if not children:
        yield node
    for child in children:
        yield from _leaves(child)


def _leaf_of_module() -> list[type[errors.SuperfluidError]]:
    return sorted(
        (leaf for leaf in _leaves(errors.SuperfluidError) if leaf.__module__ == "superfluid.errors"),
        key=lambda leaf: leaf.__name__,
    )


@pytest.mark.parametrize("leaf", _leaf_of_module())
def test_error_table_has_a_row_for_every_leaf(leaf: type[errors.SuperfluidError]) -> None:
    assert leaf in ERROR_ROWS


@pytest.mark.parametrize("leaf", _leaf_of_module())
def test_error_table_answers_callers_with_4xx_and_everything_else_with_5xx(leaf: type[errors.SuperfluidError]) -> None:
    assert (400 <= ERROR_ROWS[leaf].status < 500) == issubclass(leaf, errors.CallerError)


@pytest.mark.parametrize("leaf", _leaf_of_module())
def test_error_of_every_leaf_has_one_of_anthropics_types(leaf: type[errors.SuperfluidError]) -> None:
    is_metered = leaf in (errors.CompletionRateLimitedError, errors.RateLimitedError)
    error = leaf("x", retry_after_ms=1) if is_metered else leaf("x")  # type: ignore[call-arg]
    body = msgspec.json.decode(anthropic_error_body(error))
    kind = body["error"].pop("type")
    assert body == {"type": "error", "error": {"message": "x"}}
    is_server = kind in ("api_error", "overloaded_error")
    assert is_server == (ERROR_ROWS[leaf].status >= 500)
    assert is_server or kind in (
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
        "rate_limit_error",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "member"),
    [("/v1/messages", "type"), ("/v1/messages/count_tokens", "type"), ("/v1/messagesx", "error"), ("/v1", "error")],
)
def test_error_where_no_dialect_was_reached_is_in_the_language_of_the_path(path: str, member: str) -> None:
    body = msgspec.json.decode(path_error_body(path, errors.RouteNotFoundError("x")))
    assert next(iter(body)) == member
    assert body["error"]["message"] == "x"


def test_error_row_of_an_unknown_leaf_is_that_of_the_nearest_class_above() -> None:
    class NewError(errors.InvalidValueError):
        pass

    assert error_row(NewError("x")) == ERROR_ROWS[errors.InvalidValueError]


def test_retry_header_is_sent_for_what_may_succeed_later_only() -> None:
    assert retry_headers(errors.QueueFullError("full")) == [(b"retry-after", b"1")]
    assert retry_headers(errors.InvalidValueError("no")) == []


@pytest.mark.parametrize(("milliseconds", "seconds"), [(1, 1), (1000, 1), (1001, 2), (999_000, 999)])
def test_retry_header_of_a_metered_request_is_in_whole_seconds_rounded_up(milliseconds: int, seconds: int) -> None:
    error = errors.CompletionRateLimitedError("slow down", retry_after_ms=milliseconds)
    assert retry_headers(error) == [(b"retry-after", b"%d" % seconds)]
    assert error_row(error) == (429, "invalid_request_error", "completion_rate_limited")


def test_error_body_carries_every_member_even_if_null() -> None:
    body = openai_error_body(errors.InvalidValueError("top_p is off", param="top_p"))
    assert msgspec.json.decode(body) == {
        "error": {
            "message": "top_p is off",
            "type": "invalid_request_error",
            "param": "top_p",
            "code": "invalid_value",
        }
    }
    assert msgspec.json.decode(openai_error_body(errors.InternalFaultError("x")))["error"]["code"] is None


def test_error_frame_leaves_out_what_is_null_and_ends_the_stream() -> None:
    frame = openai_error_frame(errors.InternalFaultError("broken"))
    data, done, rest = frame.split(b"\n\n")
    assert msgspec.json.decode(data.removeprefix(b"data: ")) == {"error": {"message": "broken", "type": "server_error"}}
    assert (done, rest) == (b"data: [DONE]", b"")
