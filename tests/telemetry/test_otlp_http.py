import pytest

from superfluid.telemetry.otlp_http import rejected_spans


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", 0),
        (b"{}", 0),
        (b"not json", 0),
        (b"[1]", 0),
        (b'{"partialSuccess": {}}', 0),
        (b'{"partialSuccess": null}', 0),
        (b'{"partialSuccess": {"rejectedSpans": 3}}', 3),
        (b'{"partialSuccess": {"rejectedSpans": "3"}}', 3),
        (b'{"partialSuccess": {"rejectedSpans": "many"}}', 0),
        (b'{"partialSuccess": {"rejectedSpans": true}}', 0),
        (b'{"partialSuccess": {"rejectedSpans": -1}}', 0),
        (b'{"partialSuccess": {"rejectedSpans": 1000}}', 10),
    ],
)
def test_rejected_spans_are_read_from_any_answer_and_never_more_than_were_sent(answer: bytes, expected: int) -> None:
    assert rejected_spans(answer, 10) == expected
