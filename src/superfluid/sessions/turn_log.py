"""The line that the log has, at debug level, of a session's generation when it has ended. Without content."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from superfluid.domain.reply import Finish
from superfluid.errors import SuperfluidError

logger = logging.getLogger("superfluid_daemon::sessions")


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What is known when a generation begins. ``job`` is its number in other lines; ``transport`` is how it was asked
    for, empty if by none."""

    session: int
    job: int
    qos_class: int
    prompt_tokens: int
    transport: str


class TurnLog:
    """``monotonic`` is the clock, in seconds."""

    def __init__(self, facts: TurnFacts, monotonic: Callable[[], float]) -> None:
        self._facts = facts
        self._monotonic = monotonic
        self._begun = monotonic()
        self._first_token: float | None = None
        self._last_token = 0.0

    def tokens_came(self) -> None:
        self._last_token = self._monotonic()
        if self._first_token is None:
            self._first_token = self._last_token

    def ended(self, finish: Finish, *, warm_tokens: int, generated: int, error: SuperfluidError | None = None) -> None:
        """``finish`` is what is on record; with an ``error``, what the client was told instead."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        facts = self._facts
        fields: dict[str, int | str] = {
            "session": facts.session,
            "job": facts.job,
            "class": facts.qos_class,
            **({"transport": facts.transport} if facts.transport else {}),
            "prompt": facts.prompt_tokens,
            "cached": warm_tokens,
            "completion": generated,
            "finish": finish.name.lower(),
            **({} if error is None else {"error": error.code}),
            **self._durations(),
        }
        logger.debug("a session's generation ended", extra={"fields": fields})

    def _durations(self) -> dict[str, int]:
        durations = {"total_ms": _milliseconds(self._monotonic() - self._begun)}
        if self._first_token is not None:
            durations["ttft_ms"] = _milliseconds(self._first_token - self._begun)
            durations["decode_ms"] = _milliseconds(self._last_token - self._first_token)
        return durations


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
