"""Where prefixes of different streams can be compared without their tokens: digests at lengths that are the same for
all. Pure; used on both sides."""

from collections.abc import Iterator
from typing import Final

from superfluid.kvfiles.names import DIGEST_BYTES, prefix_digests

Mark = tuple[int, bytes]
"""A length, and the digest of the tokens up to there."""

MARK_TOKENS: Final = 32
MARK_PART: Final = 8


def mark_lengths(tokens: int, *, least: int = MARK_TOKENS) -> list[int]:
    """At most an eighth apart, from ``least`` on, and the whole length."""
    lengths: list[int] = []
    length = MARK_TOKENS
    while length < tokens:
        if length >= least:
            lengths.append(length)
        length += max(MARK_TOKENS, length // MARK_PART)
    return [*lengths, tokens]


def packed_digests(packed: bytes, lengths: list[int]) -> bytes:
    """Those of the first tokens, one behind the other; ``packed`` are int32."""
    return b"".join([digest for _, digest in prefix_digests(memoryview(packed), lengths)])


def unpacked_marks(lengths: list[int], digests: bytes) -> Iterator[Mark]:
    for index, length in enumerate(lengths):
        yield length, digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
