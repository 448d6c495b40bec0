"""Fields that every dialect has under some name, checked. Pure; raises CallerError only."""

from collections.abc import Sequence

from superfluid.errors import InvalidRequestError, InvalidValueError

MAX_STOP_STRINGS = 16
INT32_MAX = 2**31 - 1
SEED_MODULUS = 2**63
_RANDOM_SEED = -1


def required_model(model: str | None) -> str:
    if not model:
        raise InvalidRequestError("the request names no model; GET /v1/models says what is served", param="model")
    return model


def token_limit(name: str, value: int | None) -> int | None:
    """At least 1; more than any window is as good as the largest."""
    if value is None:
        return None
    if value < 1:
        hint = "; without it a reply may fill the window" if value == -1 else ""
        raise InvalidValueError(f"{name} must be at least 1, got {value}{hint}", param=name)
    return min(value, INT32_MAX)


def stop_strings(stop: str | Sequence[str] | None, *, name: str = "stop") -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidValueError(f"{name} takes at most {MAX_STOP_STRINGS} strings, got {len(strings)}", param=name)
    if not all(strings):
        raise InvalidValueError(f"{name} must not hold an empty string", param=name)
    return strings


def top_k_limit(value: int | None) -> int | None:
    """0 and -1 (other servers' way of saying it) cut nothing."""
    if value is None:
        return None
    if value < -1:
        raise InvalidValueError(f"top_k must be at least 0, got {value}", param="top_k")
    return min(max(value, 0), INT32_MAX)


def seed_value(value: int | None) -> int | None:
    """-1 is other servers' way of asking for a random one. Any other integer is taken, reduced to 63 bits."""
    return None if value is None or value == _RANDOM_SEED else value % SEED_MODULUS


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Raises InvalidValueError."""
    if value is not None and not low <= value <= high:
        raise InvalidValueError(f"{name} must be between {low:g} and {high:g}, got {value:g}", param=name)
