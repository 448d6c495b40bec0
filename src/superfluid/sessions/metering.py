"""How often clients may ask for completions: token buckets, one a connection or a caller. Runs on the event loop."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from superfluid.config import CompletionConfig
from superfluid.domain.statistics import InfillCounters
from superfluid.errors import CompletionRateLimitedError

MAX_CALLERS: Final = 4096
_MILLISECONDS: Final = 1000
_ROUNDING: Final = 1e-6


class TokenBucket:
    """Holds up to ``burst`` tokens and gains ``rate`` a second. Pure: the time is an argument, in seconds."""

    __slots__ = ("_burst", "_rate", "_then", "_tokens")

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = self._burst
        self._then = now

    def take(self, now: float) -> float:
        """Takes a token: 0. If there is none, the seconds until there will be one."""
        gained = max(0.0, now - self._then) * self._rate
        self._tokens = min(self._burst, self._tokens + gained)
        self._then = now
        # Who waited as long as told must not be refused for a rounding error.
        if self._tokens >= 1.0 - _ROUNDING:
            self._tokens = max(0.0, self._tokens - 1.0)
            return 0.0
        return (1.0 - self._tokens) / self._rate


class CompletionBucket:
    """One client's share. ``bucket`` ``None`` is without limit."""

    def __init__(self, bucket: TokenBucket | None, monotonic: Callable[[], float], counters: InfillCounters) -> None:
        self._bucket = bucket
        self._monotonic = monotonic
        self._counters = counters

    def take(self) -> None:
        """Raises CompletionRateLimitedError, and counts it, if the client asks too often."""
        if self._bucket is None:
            return
        wait = self._bucket.take(self._monotonic())
        if wait:
            self._counters.throttled += 1
            raise CompletionRateLimitedError(
                "too many completions were asked for; wait a moment",
                retry_after_ms=max(1, math.ceil(wait * _MILLISECONDS)),
            )


class CompletionMeter:
    """Makes the buckets, and keeps those of callers that have no connection of their own.

    Of these the ones that were used last are remembered: a forgotten one begins anew, with a full bucket.
    """

    def __init__(self, config: CompletionConfig, monotonic: Callable[[], float], counters: InfillCounters) -> None:
        self._config = config
        self._monotonic = monotonic
        self._counters = counters
        self._callers: OrderedDict[bytes, CompletionBucket] = OrderedDict()

    def bucket(self) -> CompletionBucket:
        """A full one."""
        config = self._config
        bucket = TokenBucket(config.rate, config.burst, self._monotonic()) if config.rate else None
        return CompletionBucket(bucket, self._monotonic, self._counters)

    def take(self, caller: bytes) -> None:
        """``CompletionBucket.take`` for whoever ``caller`` stands for."""
        bucket = self._callers.get(caller)
        if bucket is None:
            bucket = self._callers[caller] = self.bucket()
        self._callers.move_to_end(caller)
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        bucket.take()
