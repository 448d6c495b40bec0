"""What a benchmark run is made with: the same numbers for every contender."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Contender = Literal["superfluid", "llama-server", "bare loop", "llama-cpp-python"]
CONTENDERS: tuple[Contender, ...] = ("superfluid", "llama-server", "bare loop", "llama-cpp-python")

GREEDY: dict[str, float] = {"temperature": 0.0}
SAMPLED: dict[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Sizes are tokens. ``window_tokens`` is the context of one lane."""

    model: Path
    lanes: int = 8
    window_tokens: int = 2048
    threads: int = 2
    rounds: int = 5
    client_counts: tuple[int, ...] = (1, 2, 4, 8)
    short_prompt_tokens: int = 30
    decode_tokens: int = 96
    conversation_tokens: int = 1000
    conversations_per_round: int = 3
    shared_prefix_tokens: int = 1000
    long_prompt_tokens: int = 1500
    daemon_tokens: int = 200
    agent_tokens: int = 64
    crowd_clients: int = 32
    crowd_tokens: int = 64
    returning_conversations: int = 8
    returning_turns: int = 3
    edit_tokens: int = 320
    prose_tokens: int = 256


def quick(settings: BenchSettings) -> BenchSettings:
    """The same comparison cut down to a look at whether it works: one round, short streams. Not figures to keep."""
    return BenchSettings(
        model=settings.model,
        lanes=settings.lanes,
        window_tokens=settings.window_tokens,
        threads=settings.threads,
        rounds=1,
        client_counts=(1, settings.lanes),
        decode_tokens=32,
        conversations_per_round=1,
        daemon_tokens=64,
        agent_tokens=32,
        crowd_tokens=32,
        returning_turns=2,
        edit_tokens=96,
        prose_tokens=48,
    )


def settings_for(scenario: str, settings: BenchSettings) -> BenchSettings:
    """Two scenarios need a server of another size: few lanes for those who return, less KV for a crowd to outgrow."""
    match scenario:
        case "returning":
            return replace(settings, lanes=2)
        case "overcommit":
            return replace(settings, window_tokens=settings.window_tokens // 4)
        case _:
            return settings
