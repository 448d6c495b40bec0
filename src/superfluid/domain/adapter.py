"""A LoRA adapter that is loaded on top of the model."""

import re
from typing import Final

from msgspec import Struct

from superfluid.errors import InvalidValueError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What clients append to a model that has no tag.
_RESERVED: Final = frozenset({"latest"})


class AdapterFacts(Struct, frozen=True, kw_only=True):
    """``number`` is the worker's, never used twice, so that nothing of an adapter is taken for another of its name."""

    number: int
    name: str
    path: str
    loaded_unix: int


def checked_adapter_name(name: str) -> str:
    """Raises InvalidValueError unless clients can put it behind a model's name."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise InvalidValueError(
            "an adapter's name has 1 to 64 letters, digits, dots, dashes or underscores, begins with a letter or a "
            f"digit and is not 'latest'; got {name[:80]!r}",
            param="name",
        )
    return name
