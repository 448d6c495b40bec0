"""The ids that an exported session has in a trace, derived from the store and the session alone. Pure.

The live spans of a session link to them, so that both meet in one backend. XXH3-64 over little-endian integers.
"""

from typing import Final

import xxhash

ROOT_EVENT: Final = (1 << 64) - 1
"""Stands for the session as a whole where an event id is asked for."""

_NAMESPACE_SEED: Final = 0x5354
_LOW_HALF_SEED: Final = 0x5E55


def store_namespace(store_id: bytes | None) -> int:
    """A store's number: 63 bits, at least 1; 0 for a store that is not known."""
    if store_id is None:
        return 0
    return max(1, xxhash.xxh3_64_intdigest(store_id, _NAMESPACE_SEED) >> 1)


def session_trace_id(namespace: int, session: int) -> int:
    """128 bits."""
    data = _packed(namespace, session)
    return xxhash.xxh3_64_intdigest(data) << 64 | xxhash.xxh3_64_intdigest(data, _LOW_HALF_SEED)


def event_span_id(namespace: int, session: int, event: int = ROOT_EVENT) -> int:
    """64 bits: the span that begins with this event, or the one of the whole session."""
    return xxhash.xxh3_64_intdigest(_packed(namespace, session, event))


def _packed(namespace: int, *numbers: int) -> bytes:
    parts = (namespace, *numbers) if namespace else numbers
    return b"".join(number.to_bytes(8, "little") for number in parts)
