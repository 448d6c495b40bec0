import pytest

from superfluid.tui.exposition import host_of, parse_exposition

PAGE = """# HELP superfluid_ticks_total Ticks.
# TYPE superfluid_ticks_total counter
superfluid_ticks_total 12

superfluid_queue_depth{class="interactive_chat"} 3
superfluid_ttft_seconds_bucket{le="+Inf"} 1
superfluid_node_info{host="box 1"} 1
"""


def test_page_is_read_by_series_with_their_labels() -> None:
    assert parse_exposition(PAGE) == {
        "superfluid_ticks_total": 12.0,
        'superfluid_queue_depth{class="interactive_chat"}': 3.0,
        'superfluid_ttft_seconds_bucket{le="+Inf"}': 1.0,
        'superfluid_node_info{host="box 1"}': 1.0,
    }


@pytest.mark.parametrize("text", ["<html>hello</html>", "name value", "x"])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_exposition(text)


@pytest.mark.parametrize(
    ("label", "host"),
    [
        ("box", "box"),
        (r"a\"b", 'a"b'),
        (r"a\\b", "a\\b"),
        ("", None),
        (r"evil\n", "evil"),
        ("a\x1b[2Jb", "a[2Jb"),
    ],
)
def test_host_is_unescaped_and_cannot_move_the_cursor(label: str, host: str | None) -> None:
    assert host_of({f'superfluid_node_info{{host="{label}"}}': 1.0}) == host


def test_page_without_a_host_has_none() -> None:
    assert host_of({"superfluid_ticks_total": 1.0}) is None
