"""The words for where computed state lies."""

import pytest

from superfluid.cli.session.warmth import warm_text, warmth_line, warmth_plain
from superfluid.native.responses import Warmth


@pytest.mark.parametrize(
    ("warmth", "text"),
    [
        (None, "?"),
        (Warmth(0, 0, 0), "-"),
        (Warmth(1812, 0, 0), "lane 1,812"),
        (Warmth(0, 812, 0), "memory 812"),
        (Warmth(0, 0, 812), "disk 812"),
        (Warmth(812, 812, 812), "lane 812"),
        (Warmth(0, 812, 812), "memory 812"),
        (Warmth(31, 0, 812), "disk 812"),
        (Warmth(800, 812, 0), "memory 812"),
    ],
)
def test_the_tier_with_most_is_shown_and_the_fastest_of_equals(warmth: Warmth | None, text: str) -> None:
    assert warm_text(warmth) == text


def test_scripts_get_all_three() -> None:
    assert warmth_line(Warmth(1, 2, 3)) == "warm_lane=1 warm_memory=2 warm_disk=3"
    assert warmth_plain(Warmth(1, 2, 3)) == {"lane": 1, "memory": 2, "disk": 3}
    assert warmth_plain(None) is None
