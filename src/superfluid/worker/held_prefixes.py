"""Tells the daemon what lies in free lanes and in host memory: whose it is and how long, never a token. Worker."""

from collections.abc import Iterator
from typing import Final

from superfluid.kvfiles.names import prefix_digests
from superfluid.scheduling.holdings import Holding, Holdings
from superfluid.worker.protocol import HeldPrefix, PrefixesChanged

MARK_TOKENS: Final = 32
MARK_PART: Final = 8


def prefixes_changed(holdings: Holdings, *, can_truncate: bool) -> PrefixesChanged | None:
    """What to tell, if there is something."""
    added, removed = holdings.changes()
    if not added and not removed:
        return None
    return PrefixesChanged([_held_prefix(holding, can_truncate=can_truncate) for holding in added], removed)


def mark_lengths(tokens: int) -> Iterator[int]:
    """The lengths at which others' prefixes can be compared with one of ``tokens``: always the same ones, no more than
    an eighth apart, and its own."""
    length = MARK_TOKENS
    while length < tokens:
        yield length
        length += max(MARK_TOKENS, length // MARK_PART)
    yield tokens


def _held_prefix(holding: Holding, *, can_truncate: bool) -> HeldPrefix:
    """A state that cannot be cut is of use only as a whole, and one of an adapter to none but its owner."""
    length = len(holding.tokens)
    lengths: list[int] = []
    if not holding.adapter:
        lengths = list(mark_lengths(length)) if can_truncate else [length]
    digests = prefix_digests(memoryview(holding.tokens.tobytes()), lengths)
    return HeldPrefix(
        holding.number,
        holding.lane,
        holding.owner,
        length,
        lengths,
        b"".join([digest for _, digest in digests]),
    )
