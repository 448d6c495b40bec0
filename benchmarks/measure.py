"""What all scenarios share: what a measure is, how a message is written, a turn of a conversation."""

from collections.abc import Callable

from benchmarks.client import StreamRecord, complete_all, run
from benchmarks.prompts import Vocabulary
from benchmarks.servers import RunningServer
from benchmarks.settings import GREEDY, BenchSettings

Measure = tuple[str, str, float]
Scenario = Callable[[RunningServer, BenchSettings, Vocabulary, int], list[Measure]]

FOLLOW_UP = "And what comes after that?"
TURN_TOKENS = 32


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def take_turn(server: RunningServer, messages: list[dict[str, str]]) -> StreamRecord:
    """One greedy reply, by itself."""
    (record,) = run(complete_all(server.address, server.path, [server.request(messages, TURN_TOKENS, **GREEDY)]))
    return record
