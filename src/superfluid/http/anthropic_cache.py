"""``cache_control`` of Anthropic's requests, as pins of the prompt's beginning. Pure; raises CallerError only."""

from typing import Any, Final

from superfluid.domain.request import MessagePin
from superfluid.errors import InvalidRequestError

MAX_BREAKPOINTS: Final = 4
_TTL_MS: Final = {"5m": 5 * 60 * 1000, "1h": 60 * 60 * 1000}
_LONGEST_MS: Final = max(_TTL_MS.values())


class Breakpoints:
    """Collects the marks of one request, in the order in which the model reads what they are on."""

    def __init__(self) -> None:
        self._pins: list[MessagePin] = []

    def note(self, control: Any, path: str, message: int) -> None:
        """What ``path`` carries as its ``cache_control``: through the end of ``message`` the prompt is to stay cached.

        Raises InvalidRequestError for one that means nothing, for too many, and for a long one behind a short one.
        """
        if control is None:
            return
        where = f"{path}.cache_control" if path else "cache_control"
        ttl_ms = _ttl_ms(control, where)
        if len(self._pins) == MAX_BREAKPOINTS:
            raise InvalidRequestError(f"at most {MAX_BREAKPOINTS} blocks can have a cache_control", param=where)
        if ttl_ms == _LONGEST_MS and any(pin.ttl_ms < _LONGEST_MS for pin in self._pins):
            raise InvalidRequestError(f"{where}: a ttl of '1h' must not come after one of '5m'", param=where)
        self._pins.append(MessagePin(message, ttl_ms))

    @property
    def pins(self) -> tuple[MessagePin, ...]:
        return tuple(self._pins)


def refuse_breakpoint(control: Any, path: str, what: str) -> None:
    """Raises InvalidRequestError if a block carries one that no prefix can end with."""
    if control is not None:
        where = f"{path}.cache_control"
        raise InvalidRequestError(f"{where}: {what} cannot have one", param=where)


def _ttl_ms(control: Any, where: str) -> int:
    if not isinstance(control, dict):
        raise InvalidRequestError(f"{where}: expected an object", param=where)
    if control.keys() - {"type", "ttl"}:
        raise InvalidRequestError(f"{where} can have a type and a ttl, and nothing else", param=where)
    if control.get("type") != "ephemeral":
        raise InvalidRequestError(f"{where}.type must be 'ephemeral'", param=f"{where}.type")
    ttl = control.get("ttl", "5m")
    ttl_ms = _TTL_MS.get(ttl) if isinstance(ttl, str) else None
    if ttl_ms is None:
        raise InvalidRequestError(f"{where}.ttl must be '5m' or '1h'", param=f"{where}.ttl")
    return ttl_ms
