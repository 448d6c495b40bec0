"""Prefixes that are to stay cached until a time: whose they are, what they hold, which give way. Pure; in the worker.

A pin computes nothing. It keeps what has been computed: a lane with its tokens is saved before it is given away, and
the host entry that covers them goes last.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from superfluid.domain.job import Job
from superfluid.scheduling.prefix import PrefixIndex
from superfluid.scheduling.rates import Rates
from superfluid.scheduling.sequence import NO_TOKENS, Lane
from superfluid.scheduling.statistics import SchedulerCounters
from superfluid.scheduling.token_tree import Tokens, common_prefix

MAX_PREFIX_PINS: Final = 256
PinKey = int | bytes
"""A session, or the digest of a prefix."""


@dataclass(slots=True)
class Pin:
    """``tokens`` are those of the prefix, or what the session was last seen with. ``is_held``: something has them."""

    tokens: Tokens
    deadline_unix: float
    touched: int
    owner: int | None
    is_held: bool = False


class Pins:
    """Reads lanes and index, and tells the index what it protects. ``budget_bytes`` 0 keeps no pin at all.

    What was computed with an adapter is never pinned: sessions go on with the model alone.
    """

    def __init__(
        self, lanes: list[Lane], index: PrefixIndex, rates: Rates, counters: SchedulerCounters, *, budget_bytes: int
    ) -> None:
        self._lanes = lanes
        self._index = index
        self._rates = rates
        self._counters = counters
        self._budget_bytes = budget_bytes
        self._pins: dict[PinKey, Pin] = {}
        self._touches = 0
        self._is_stale = False
        self.held = 0
        self.held_bytes = 0
        self.lanes: frozenset[int] = frozenset()
        """Lanes that are to be saved before they are given away."""

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def next_deadline_unix(self) -> float | None:
        return min([pin.deadline_unix for pin in self._pins.values()]) if self._pins else None

    def set_session(self, session: int, deadline_unix: float, now_unix: float) -> None:
        """The last deadline wins; one that has passed, or 0, lets go."""
        self._is_stale = True
        if deadline_unix <= now_unix or not self._budget_bytes:
            self._pins.pop(session, None)
            return
        pin = self._pins.get(session)
        if pin is None:
            pin = self._pins[session] = Pin(self._last_seen(session), deadline_unix, 0, session)
        pin.deadline_unix = deadline_unix
        self._touch(pin)

    def placed(self, lane: Lane, now_unix: float) -> None:
        """A job has got ``lane``: what it pins counts from now on."""
        assert lane.sequence is not None
        job, stream = lane.sequence.job, lane.sequence.stream
        if not self._budget_bytes or job.adapter:
            return
        if job.session and job.pin_deadline_unix_ms:
            self.set_session(job.session, job.pin_deadline_unix_ms / 1000, now_unix)
        pin = self._pins.get(job.session) if job.session else None
        if pin is not None:
            pin.tokens = stream.copy()
            self._touch(pin)
        self._pin_prefixes(job, stream, now_unix)
        self._is_stale = True

    def changed(self) -> None:
        """Lanes or host memory have."""
        self._is_stale = bool(self._pins) or self._is_stale

    def left(self, lane: Lane) -> None:
        """A job has left ``lane``, and its tokens in it."""
        pin = self._pins.get(lane.owner) if lane.owner and not lane.adapter else None
        if pin is not None:
            pin.tokens = lane.held.copy()
            self._touch(pin)
        self.changed()

    def expire(self, now_unix: float) -> bool:
        """Lets pins go whose time has come. Whether there were any."""
        over = [key for key, pin in self._pins.items() if pin.deadline_unix <= now_unix]
        for key in over:
            del self._pins[key]
        self._counters.pins_expired_total += len(over)
        self._is_stale |= bool(over)
        return bool(over)

    def forget(self, owners: Collection[int]) -> None:
        """Drops what is pinned for these sessions."""
        for key in [key for key, pin in self._pins.items() if pin.owner in owners]:
            del self._pins[key]
        self._is_stale = True

    def settle(self) -> None:
        """Finds what holds each pin; those that have lost it, and those over the budget, give way."""
        if not self._is_stale:
            return
        self._is_stale = False
        sizes, lanes = self._look()
        while sum(sizes.values()) > self._budget_bytes:
            self._yield_oldest()
            sizes, lanes = self._look()
        self.held = sum(pin.is_held for pin in self._pins.values())
        self.held_bytes = sum(sizes.values())
        self.lanes = frozenset(lanes)
        self._index.protected = frozenset(key for key in sizes if key >= 0)

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong."""
        assert sum(isinstance(key, bytes) for key in self._pins) <= MAX_PREFIX_PINS
        if not self._is_stale:
            assert self.held_bytes <= self._budget_bytes
            assert self.held == sum(pin.is_held for pin in self._pins.values())
            assert self._index.protected <= {entry.entry_id for entry in self._index}

    # ----

    def _pin_prefixes(self, job: Job, stream: Tokens, now_unix: float) -> None:
        for wish in job.prefix_pins:
            if not 0 < wish.tokens <= job.prompt_tokens or wish.ttl_ms <= 0:
                continue
            tokens = stream[: wish.tokens]
            key = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
            pin = self._pins.get(key)
            if pin is None:
                pin = self._pins[key] = Pin(tokens.copy(), 0.0, 0, job.session or None)
            pin.deadline_unix = max(pin.deadline_unix, now_unix + wish.ttl_ms / 1000)
            self._touch(pin)
        prefixes = [key for key in self._pins if isinstance(key, bytes)]
        prefixes.sort(key=lambda key: self._pins[key].touched)
        for key in prefixes[: max(0, len(prefixes) - MAX_PREFIX_PINS)]:
            self._give_up(key)

    def _last_seen(self, session: int) -> Tokens:
        """The longest that is known of the session."""
        known = [lane.held for lane in self._lanes if lane.owner == session and not lane.adapter]
        known += [entry.tokens for entry in self._index if entry.owner == session and not entry.adapter]
        return max(known, key=len, default=NO_TOKENS).copy()

    def _touch(self, pin: Pin) -> None:
        self._touches += 1
        pin.touched = self._touches

    def _yield_oldest(self) -> None:
        self._give_up(min((key for key, pin in self._pins.items() if pin.is_held), key=lambda k: self._pins[k].touched))

    def _give_up(self, key: PinKey) -> None:
        del self._pins[key]
        self._counters.pins_yielded_total += 1

    def _look(self) -> tuple[dict[int, int], set[int]]:
        """The bytes that pins hold, by host entry (or by ``-1 - lane`` for what is in a lane alone), and their lanes.

        A pin that has lost what it had is given up.
        """
        sizes: dict[int, int] = {}
        lanes: set[int] = set()
        for key, pin in list(self._pins.items()):
            if not len(pin.tokens):  # nothing was ever seen of it, and of such pins there may be many
                continue
            entry = self._index.covering(pin.tokens)
            covered = 0 if entry is None else min(entry.length, len(pin.tokens))
            lane, match = self._best_lane(pin.tokens)
            was_held, pin.is_held = pin.is_held, bool(covered or match)
            if was_held and not pin.is_held:
                self._give_up(key)
            if entry is not None and covered >= match:
                sizes[entry.entry_id] = entry.size_bytes or self._rates.entry_bytes(entry.length)
            elif lane is not None:
                lanes.add(lane.index)
                sizes[-1 - lane.index] = self._rates.entry_bytes(match)
        return sizes, lanes

    def _best_lane(self, tokens: Tokens) -> tuple[Lane | None, int]:
        best, most = None, 0
        for lane in self._lanes:
            match = 0 if lane.adapter else common_prefix(lane.held, tokens)
            if match > most:
                best, most = lane, match
        return best, most
