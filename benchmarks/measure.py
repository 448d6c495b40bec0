"""What all scenarios share: what a measure is, and how a message is written."""

from collections.abc import Callable

from benchmarks.prompts import Vocabulary
from benchmarks.servers import RunningServer
from benchmarks.settings import BenchSettings

Measure = tuple[str, str, float]
Scenario = Callable[[RunningServer, BenchSettings, Vocabulary, int], list[Measure]]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
