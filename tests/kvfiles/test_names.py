"""File names: all that sweeping and erasing go by."""

from array import array

import pytest

from superfluid.domain.job import ParkKind
from superfluid.kvfiles.names import KvName, parse_name, prefix_digests, token_digest

KEY, TOKENS = "0" * 16, "ab" * 16


@pytest.mark.parametrize("kind", [ParkKind.SESSION, ParkKind.REQUEST])
@pytest.mark.parametrize("owner", [None, 0, 1, 2**64 - 1])
@pytest.mark.parametrize("writer", [None, 4711])
def test_name_comes_back_from_its_text(kind: ParkKind, owner: int | None, writer: int | None) -> None:
    name = KvName(kind, KEY, TOKENS, owner, writer)
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "digests.json",
        f"s-{KEY}-{TOKENS}-1.kv.bak",
        f"x-{KEY}-{TOKENS}-1.kv",
        f"s-{KEY}-{TOKENS}-{'1' * 17}.kv",
        f"s-{KEY}-{TOKENS}-1.kv.tmp",
        f"s-{KEY}-{TOKENS}-1.kv\n",
    ],
)
def test_name_of_something_else_is_none(text: str) -> None:
    assert parse_name(text) is None


def test_prefix_digests_are_those_of_the_prefixes() -> None:
    tokens = array("i", range(50))
    packed = memoryview(tokens).cast("B")
    expected = [(length, token_digest(tokens[:length].tobytes())) for length in (1, 7, 7, 50)]
    assert list(prefix_digests(packed, [1, 7, 7, 50])) == expected
