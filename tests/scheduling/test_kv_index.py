"""The index of KV files: what matches, what covers, what is not needed any more."""

import numpy as np
import pytest
from tests.fixtures.scheduling import text

from superfluid.domain.job import ParkKind
from superfluid.scheduling.kv_index import KvFile, KvIndex
from superfluid.scheduling.token_tree import Tokens

SESSION, REQUEST = ParkKind.SESSION, ParkKind.REQUEST


def array_of(tokens: list[int]) -> Tokens:
    return np.array(tokens, np.int32)


def file(file_id: int, tokens: list[int], *, kind: ParkKind = SESSION, owner: int | None = 1) -> KvFile:
    return KvFile(file_id, array_of(tokens), kind, owner, 100)


def test_matches_are_files_within_the_stream_and_one_that_shares_its_beginning() -> None:
    index = KvIndex(is_nesting=True)
    stream = text(1, 400)
    for number, tokens in enumerate((stream[:100], stream[:300], [*stream[:350], *text(2, 50)], text(3, 100)), 1):
        index.add(file(number, tokens))
    index.check_integrity()
    found = {(match.file_id, tokens) for match, tokens in index.matches(array_of(stream))}
    assert found == {(1, 100), (2, 300), (3, 350)}
    assert index.matches(array_of(text(4, 100))) == []


@pytest.mark.parametrize(("is_nesting", "covered"), [(True, 350), (False, 300)])
def test_covered_tokens_where_states_cannot_be_cut_are_those_of_whole_files(is_nesting: bool, covered: int) -> None:
    index = KvIndex(is_nesting=is_nesting)
    stream = text(1, 400)
    index.add(file(1, stream[:300]))
    index.add(file(2, [*stream[:350], *text(2, 50)], owner=2))
    assert index.covered_tokens(array_of(stream)) == covered


@pytest.mark.parametrize(
    ("old", "new", "is_superseded"),
    [
        ((SESSION, 1), (SESSION, 1), True),
        ((REQUEST, 1), (SESSION, 1), True),
        ((REQUEST, 1), (REQUEST, 2), True),
        ((REQUEST, None), (REQUEST, None), True),
        ((SESSION, 1), (SESSION, 2), False),
        ((SESSION, 1), (REQUEST, 2), False),
        ((REQUEST, 1), (SESSION, 2), False),
    ],
)
def test_add_makes_the_earlier_state_of_the_same_conversation_needless(
    old: tuple[ParkKind, int | None], new: tuple[ParkKind, int | None], is_superseded: bool
) -> None:
    index = KvIndex(is_nesting=True)
    stream = text(1, 400)
    index.add(file(1, stream[:300], kind=old[0], owner=old[1]))
    needless = index.add(file(2, stream, kind=new[0], owner=new[1]))
    assert [superseded.file_id for superseded in needless] == [1] * is_superseded
    assert index.add(file(3, text(5, 500), kind=new[0], owner=new[1])) == []
