"""Stop strings over streamed text."""

from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.stops import StopMatcher

_texts = st.text(alphabet="ab.", max_size=24)
_stops = st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), min_size=1, max_size=4)


def _naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The earliest match, of those at one place the shortest."""
    matches = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not matches:
        return text, None
    position, _, stop = min(matches)
    return text[:position], stop


@given(_texts, _stops, st.lists(st.integers(1, 4)))
def test_matcher_at_any_chunking_equals_search_over_the_whole_text(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    matcher = StopMatcher(stops)
    out = ""
    rest = text
    for size in sizes:
        out += matcher.feed(rest[:size])
        rest = rest[size:]
    out += matcher.feed(rest)
    if matcher.matched is None:
        out += matcher.finish()
    assert (out, matcher.matched) == _naive(text, stops)


@given(_texts, _stops)
def test_matcher_never_hands_out_what_a_stop_string_could_still_claim(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out = ""
    for end in range(1, len(text) + 1):
        out += matcher.feed(text[end - 1])
        for stop in stops:
            # Whatever came next, the output so far would stand.
            assert _naive(text[:end] + stop, stops)[0].startswith(out)


def test_matcher_without_stop_strings_hands_text_on() -> None:
    matcher = StopMatcher(())
    assert matcher.feed("anything") == "anything"
    assert matcher.finish() == ""


def test_matcher_with_an_ending_that_may_grow_holds_only_that_back() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.feed("Hello\n") == "Hello"
    assert matcher.feed("\nUs") == ""
    assert matcher.feed("e it") == "\n\nUse it"
    assert matcher.matched is None


def test_matcher_after_a_match_hands_out_nothing_more() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("a END b") == "a "
    assert matcher.matched == "END"
    assert matcher.feed("c") == ""
    assert matcher.finish() == ""


def test_matcher_ignores_empty_stop_strings() -> None:
    matcher = StopMatcher([""])
    assert matcher.feed("abc") == "abc"
    assert matcher.matched is None
