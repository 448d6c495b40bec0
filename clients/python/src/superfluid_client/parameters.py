"""What a caller hands to the session API: sampling, edits, and the numbers it gives names to. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


class Role(enum.IntEnum):
    """Who speaks in a message."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3


class QosClass(enum.IntEnum):
    """Who is served first when lanes are scarce; 2 is what a session starts with."""

    INTERACTIVE_CHAT = 0
    INLINE_COMPLETION = 1
    FOREGROUND_AGENT = 2
    BACKGROUND_AGENT = 3


class BlockKind(enum.IntEnum):
    """What a block of structured content holds."""

    FILE_DIFF = 1
    ARTIFACT = 2
    CITATION = 3
    PROGRESS = 4
    DIAGNOSTIC = 5
    WORKSPACE_REF = 6
    IMAGE = 7


class ToolOutcome(enum.IntEnum):
    """How a call ended that has no result."""

    FAILED = 1
    CANCELLED = 2


class PurgeMode(enum.StrEnum):
    """What becomes of the sessions that were forked from a purged one: they go with it, or live on without a parent."""

    CASCADE = "Cascade"
    REROOT = "Reroot"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a session's tokens are drawn; fixed when the session is made.

    ``temperature`` 0 always takes the likeliest token, ``top_k`` 0 leaves all of them in. The draws depend on ``seed``
    (0 to 2**64 - 1) and on a token's position alone, so the same seed on the same text draws the same words.
    """

    temperature: float = 0.7
    top_p: float = 0.95
    min_p: float = 0.0
    top_k: int = 0
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The ``params`` of a request: all five fields."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "top_k": self.top_k,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, params: Mapping[str, Any]) -> Self:
        """From an event or an inspection; unknown keys are ignored."""
        return cls(
            temperature=_number(params["temperature"]),
            top_p=_number(params["top_p"]),
            min_p=_number(params["min_p"]),
            top_k=params["top_k"],
            seed=params["seed"],
        )


def _number(value: float | None) -> float:
    # JSON has no NaN or infinity: they arrive as null.
    return float("nan") if value is None else value


@dataclass(frozen=True, slots=True)
class Drop:
    """Leaves out the events ``start`` up to, but without, ``end``."""

    start: int
    end: int

    def to_json(self) -> dict[str, Any]:
        return {"Drop": {"from": self.start, "to": self.end}}


@dataclass(frozen=True, slots=True)
class Replace:
    """Puts one message in the place of the events ``start`` up to, but without, ``end``."""

    start: int
    end: int
    text: str
    role: Role = Role.USER

    def to_json(self) -> dict[str, Any]:
        return {"Replace": {"from": self.start, "to": self.end, "role": int(self.role), "text": self.text}}


RebaseEdit = Drop | Replace
