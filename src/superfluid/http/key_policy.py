"""What the operator grants each key: admin routes, requests at once and a minute, classes. Runs on the event loop.

Nothing here waits: time is an argument, in monotonic seconds.
"""

import logging
import math
from typing import Final, Literal, get_args

from starlette.types import Scope

from superfluid.config import HttpQosConfig, PolicyKey
from superfluid.domain.statistics import KeyStatistics
from superfluid.errors import AdminRequiredError, ConcurrencyLimitedError, RateLimitedError
from superfluid.sessions.metering import TokenBucket

logger = logging.getLogger("superfluid_daemon")

Reason = Literal["rate_limit", "concurrency", "qos", "admin"]
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
ADMIN_ROUTES: Final = frozenset({"/v1/models/load", "/v1/models/unload", "/v1/lora/load", "/v1/lora/unload"})
"""What changes the server for everybody: a key of the policy needs ``admin`` for them."""
_HOLDER: Final = "superfluid.key_holder"
_SECONDS: Final = 60.0


class KeyHolder:
    """One key of the policy: what it may do, and what it did since the start."""

    def __init__(self, key: PolicyKey, now: float) -> None:
        self.name = key.name
        self.is_admin = key.is_admin
        self.qos = HttpQosConfig(default=key.qos, allows_batch_invariant=key.allows_batch_invariant, best=key.max_qos)
        self._bucket = minute_bucket(key.rate_limit_rpm, now) if key.rate_limit_rpm else None
        self._slots = key.max_concurrent
        self._in_flight = 0
        self._requests = 0
        self._rejected: dict[Reason, int] = dict.fromkeys(REASONS, 0)

    @property
    def has_rate(self) -> bool:
        """Whether its own rate stands in for the one of its address."""
        return self._bucket is not None

    def note_request(self) -> None:
        self._requests += 1

    def note_refusal(self, reason: Reason) -> None:
        self._rejected[reason] += 1
        logger.debug("key policy refused a request", extra={"fields": {"key": self.name, "reason": reason}})

    def take_slot(self) -> None:
        """To be given back with ``release_slot``. Raises ConcurrencyLimitedError if all are taken."""
        if not self._slots:
            return
        if self._in_flight >= self._slots:
            self.note_refusal("concurrency")
            raise ConcurrencyLimitedError(f"this key may have {self._slots} requests in flight, and it has them")
        self._in_flight += 1

    def release_slot(self) -> None:
        if self._slots:
            assert self._in_flight > 0
            self._in_flight -= 1

    def spend_rate(self, now: float) -> None:
        """Raises RateLimitedError if the key has spent its rate."""
        wait = self._bucket.take(now) if self._bucket is not None else 0.0
        if wait:
            self.note_refusal("rate_limit")
            raise rate_limited("this key", wait)

    def refuse_admin(self) -> AdminRequiredError:
        """Counts the refusal; to be raised."""
        self.note_refusal("admin")
        return AdminRequiredError("this route changes the server for everybody: it needs a key with admin rights")

    def statistics(self) -> KeyStatistics:
        return KeyStatistics(
            name=self.name,
            requests_total=self._requests,
            rejected={str(reason): count for reason, count in self._rejected.items()},
            in_flight=self._in_flight,
        )


def minute_bucket(rpm: int, now: float) -> TokenBucket:
    """A minute's worth at once, and as much again every minute."""
    return TokenBucket(rpm / _SECONDS, rpm, now)


def rate_limited(whose: str, wait_seconds: float) -> RateLimitedError:
    return RateLimitedError(
        f"{whose} has sent too many requests; wait a moment",
        retry_after_ms=max(1, math.ceil(wait_seconds * 1000)),
    )


def bind_holder(scope: Scope, holder: KeyHolder) -> None:
    """From here on the request is the holder's."""
    scope[_HOLDER] = holder


def holder_of(scope: Scope) -> KeyHolder | None:
    """Whose request it is; ``None`` for the global key, and where there is no policy."""
    holder: KeyHolder | None = scope.get(_HOLDER)
    return holder
