"""Whether a request may come in: its key, what the policy grants that key, its address's rate. Runs on the event loop.

A refused request has spent nothing that outlives it but rate: its slot is free again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from starlette.types import Scope

from superfluid.config import HttpConfig
from superfluid.domain.statistics import KeyStatistics
from superfluid.http.guards import Authenticator
from superfluid.http.key_policy import ADMIN_ROUTES, KeyHolder, bind_holder, holder_of, minute_bucket, rate_limited
from superfluid.sessions.metering import TokenBucket

OPEN_PATHS: Final = frozenset({"/health"})
UNMETERED_PATHS: Final = frozenset({"/metrics", "/v1/metrics"})
"""They need the key, and whoever watches a server must not be shut out by what it watches."""
MAX_ADDRESSES: Final = 100_000
IDLE_SECONDS: Final = 300.0


class AddressLimiter:
    """A token bucket for each address. ``rpm`` 0 lets everybody pass.

    Buckets that were idle for ``IDLE_SECONDS`` are full again and are dropped. Beyond ``MAX_ADDRESSES`` the one
    that was used longest ago goes, whose address then begins anew.
    """

    def __init__(self, rpm: int) -> None:
        self._rpm = rpm
        self._buckets: OrderedDict[str, tuple[TokenBucket, float]] = OrderedDict()
        """With the time of the last request, the oldest first."""

    def __len__(self) -> int:
        return len(self._buckets)

    def spend(self, address: str, now: float) -> None:
        """Raises RateLimitedError."""
        if not self._rpm:
            return
        known = self._buckets.pop(address) if address in self._buckets else None
        bucket = minute_bucket(self._rpm, now) if known is None else known[0]
        self._buckets[address] = (bucket, now)
        self._forget(now)
        wait = bucket.take(now)
        if wait:
            raise rate_limited("this address", wait)

    def _forget(self, now: float) -> None:
        while self._buckets:
            oldest, (_, used) = next(iter(self._buckets.items()))
            if now - used <= IDLE_SECONDS and len(self._buckets) <= MAX_ADDRESSES:
                return
            del self._buckets[oldest]


class Admission:
    """The layers between the browser guard and the routes. ``monotonic`` gives seconds."""

    def __init__(self, config: HttpConfig, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._holders = {key.name: KeyHolder(key, monotonic()) for key in config.key_policy}
        self._authenticator = Authenticator(config.api_key, {key.name: key.secret for key in config.key_policy})
        self._addresses = AddressLimiter(config.rate_limit_rpm)

    @contextmanager
    def admitted(self, scope: Scope) -> Iterator[None]:
        """Around everything that is done for a request, up to the last byte of its answer.

        Entering raises InvalidApiKeyError, AdminRequiredError, ConcurrencyLimitedError or RateLimitedError.
        """
        if scope["path"] in OPEN_PATHS:
            yield
            return
        holder = self._holder(scope)
        if scope["path"] in UNMETERED_PATHS:
            yield
        elif holder is None:
            self._spend_address(scope)
            yield
        else:
            holder.note_request()
            if scope["path"] in ADMIN_ROUTES and not holder.is_admin:
                # Guessing at admin routes costs as much as using the others.
                self._spend(scope, holder)
                raise holder.refuse_admin()
            holder.take_slot()
            try:
                self._spend(scope, holder)
                yield
            finally:
                holder.release_slot()

    def visible_statistics(self, scope: Scope) -> Sequence[KeyStatistics]:
        """What the asker may know of the keys' traffic: a key without admin rights sees its own."""
        holder = holder_of(scope)
        holders = self._holders.values() if holder is None or holder.is_admin else (holder,)
        return [each.statistics() for each in holders]

    def _holder(self, scope: Scope) -> KeyHolder | None:
        name = self._authenticator.check(scope)
        if name is None:
            return None
        holder = self._holders[name]
        bind_holder(scope, holder)
        return holder

    def _spend(self, scope: Scope, holder: KeyHolder) -> None:
        if holder.has_rate:
            holder.spend_rate(self._monotonic())
        else:
            self._spend_address(scope)

    def _spend_address(self, scope: Scope) -> None:
        client = scope.get("client")
        self._addresses.spend(client[0] if client else "", self._monotonic())
