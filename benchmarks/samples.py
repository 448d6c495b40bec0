"""One measured number and where it belongs. Everything that a run finds out is a list of these."""

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.settings import Contender


@dataclass(frozen=True)
class Sample:
    """``case`` tells the variants of a scenario apart (``8 clients``); ``metric`` carries the unit in its name."""

    scenario: str
    case: str
    metric: str
    contender: Contender
    round_index: int
    value: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
