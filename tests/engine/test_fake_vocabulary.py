"""The vocabulary that the fake engine and the fake tokenizer share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.engine import fake_vocabulary as vocabulary

_pieces = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(vocabulary.SPECIAL_TOKENS)), max_size=8)


@given(_pieces)
def test_encode_with_markers_pieces_joined_again_give_the_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    tokens = vocabulary.encode_with_markers(text)
    assert b"".join(map(vocabulary.piece, tokens)) == text.encode()


@given(_pieces)
def test_encode_with_markers_count_of_special_tokens_is_the_count_of_marker_texts(pieces: list[str]) -> None:
    text = "".join(pieces)
    tokens = vocabulary.encode_with_markers(text)
    for marker in vocabulary.SPECIAL_TOKENS:
        assert tokens.count(vocabulary.SPECIAL_IDS[marker]) == text.count(marker)


@given(_pieces)
def test_encode_plain_never_yields_a_marker(pieces: list[str]) -> None:
    assert all(token < vocabulary.BYTE_TOKENS for token in vocabulary.encode_plain("".join(pieces)))


@pytest.mark.parametrize("token", [-1, vocabulary.VOCABULARY_TOKENS])
def test_piece_of_an_unknown_token_raises(token: int) -> None:
    with pytest.raises(IndexError):
        vocabulary.piece(token)
