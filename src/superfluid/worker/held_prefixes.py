"""Tells the daemon what lies in free lanes and in host memory: whose it is and how long, never a token. Worker."""

from superfluid.scheduling.holdings import Holding, Holdings
from superfluid.worker.prefix_marks import mark_lengths, packed_digests
from superfluid.worker.protocol import HeldPrefix, PrefixesChanged


def prefixes_changed(holdings: Holdings, *, can_truncate: bool) -> PrefixesChanged | None:
    """What to tell, if there is something."""
    added, removed = holdings.changes()
    if not added and not removed:
        return None
    return PrefixesChanged([_held_prefix(holding, can_truncate=can_truncate) for holding in added], removed)


def _held_prefix(holding: Holding, *, can_truncate: bool) -> HeldPrefix:
    """A state that cannot be cut is of use only as a whole, and one of an adapter to none but its owner."""
    length = len(holding.tokens)
    lengths: list[int] = []
    if not holding.adapter:
        lengths = mark_lengths(length) if can_truncate else [length]
    digests = packed_digests(holding.tokens.tobytes(), lengths)
    return HeldPrefix(holding.number, holding.lane, holding.owner, length, lengths, digests)
