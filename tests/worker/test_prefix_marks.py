"""Where prefixes are compared: the lengths, and what is sent of them."""

from array import array
from itertools import pairwise

import pytest

from superfluid.kvfiles.names import token_digest
from superfluid.worker.prefix_marks import mark_lengths, packed_digests, unpacked_marks


@pytest.mark.parametrize(
    ("tokens", "least", "lengths"),
    [
        (1, 32, [1]),
        (32, 32, [32]),
        (33, 32, [32, 33]),
        (350, 32, [*range(32, 289, 32), 324, 350]),
        (350, 256, [256, 288, 324, 350]),
        (256, 256, [256]),
    ],
)
def test_marks_are_the_same_for_all_and_end_at_the_length(tokens: int, least: int, lengths: list[int]) -> None:
    assert mark_lengths(tokens, least=least) == lengths


def test_marks_of_a_long_prefix_are_few() -> None:
    lengths = mark_lengths(131_072)
    assert len(lengths) < 70
    assert all(later <= earlier + max(32, earlier // 8) for earlier, later in pairwise(lengths))


def test_marks_come_out_as_they_went_in() -> None:
    stream = array("i", range(100))
    lengths = [32, 64, 100]
    marks = list(unpacked_marks(lengths, packed_digests(stream.tobytes(), lengths)))
    assert marks == [(length, token_digest(stream[:length].tobytes())) for length in lengths]
