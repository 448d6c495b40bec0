"""The cache of tokenized texts."""

from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.token_cache import TokenCache


def test_cache_returns_what_was_put_and_counts() -> None:
    cache = TokenCache(10_000)
    assert cache.get("text", False) is None
    cache.put("text", False, [1, 2, 3])
    tokens = cache.get("text", False)
    assert tokens is not None
    assert list(tokens) == [1, 2, 3]
    assert cache.get("text", True) is None
    assert cache.statistics()[2:] == (1, 2)


def test_cache_over_its_bound_drops_the_least_recently_used() -> None:
    cache = TokenCache(3 * 210)
    for text in ("a", "b", "c"):
        cache.put(text, False, [1])
    cache.get("a", False)
    cache.put("d", False, [1])
    assert cache.get("b", False) is None
    assert cache.get("a", False) is not None


def test_cache_refuses_a_text_that_would_empty_it() -> None:
    cache = TokenCache(1000)
    cache.put("x" * 600, False, [1])
    assert cache.statistics().entries == 0


@given(st.lists(st.tuples(st.text(max_size=40), st.lists(st.integers(0, 9), max_size=40))))
def test_cache_books_add_up_after_any_puts(puts: list[tuple[str, list[int]]]) -> None:
    cache = TokenCache(2000)
    for text, tokens in puts:
        cache.put(text, False, tokens)
        cache.check_integrity()
