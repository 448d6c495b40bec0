"""Single-precision numbers in Python's double-precision floats. Pure."""

import math
import struct
from functools import lru_cache

_FLOAT = struct.Struct("<f")


def round_to_float32(value: float) -> float:
    """The nearest single-precision number; beyond their range an infinity. Raises OverflowError on an infinity."""
    if math.isinf(value):
        raise OverflowError("infinite")
    try:
        (rounded,) = _FLOAT.unpack(_FLOAT.pack(value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(rounded)


def shortest_double(value: float) -> float | None:
    """The double with the shortest decimal form among those that round to the same single-precision number as
    ``value`` does. ``None`` for NaN and infinities, which JSON has no form for."""
    # Zeros stay out of the cache, which takes -0.0 for 0.0.
    return float(value) if value == 0 else _search_shortest(value)


@lru_cache(maxsize=1024)
def _search_shortest(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    single = round_to_float32(value)
    if not math.isfinite(single):
        return None
    # Nine digits tell any two single-precision numbers apart.
    for digits in range(1, 9):
        candidate = float(f"{single:.{digits}g}")
        if round_to_float32(candidate) == single:
            return candidate
    return float(f"{single:.9g}")
