"""The comparisons, each as a function that loads one running server and returns what it measured as
``(case, metric, value)``. What each one is good for and how it counts is in METHODOLOGY.md.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.client import (
    BenchmarkError,
    StreamRecord,
    complete_all,
    finish,
    open_stream,
    run,
)
from benchmarks.crowds import chat_behind_agents, hang_up, herd, overcommit, returning
from benchmarks.measure import FOLLOW_UP, Measure, Scenario, take_turn, user
from benchmarks.process_usage import cpu_seconds, resident_bytes
from benchmarks.prompts import Vocabulary, chat_prefix
from benchmarks.restarts import restart
from benchmarks.servers import RunningServer
from benchmarks.settings import GREEDY, SAMPLED, BenchSettings

STREAMS_BEFORE_GAP_TOKENS = 8

TokenCounter = Callable[[str], int]
"""How many tokens a text has."""


def decode_greedy(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """Decode rate at each number of clients, argmax."""
    return _decode(server, settings, vocabulary, round_index, GREEDY)


def decode_sampled(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """Decode rate at each number of clients, with the usual truncations and a seed per client."""
    return _decode(server, settings, vocabulary, round_index, SAMPLED)


def _decode(
    server: RunningServer,
    settings: BenchSettings,
    vocabulary: Vocabulary,
    round_index: int,
    sampling: dict[str, float],
) -> list[Measure]:
    measures: list[Measure] = []
    warm_up = [server.request([user("Hello")], 8, **sampling)]
    run(complete_all(server.address, server.path, warm_up))
    for clients in settings.client_counts:
        seeds = [1_000 * (round_index + 1) + 10 * clients + client for client in range(clients)]
        prompts = [vocabulary.text_of(settings.short_prompt_tokens, seed) for seed in seeds]
        bodies = [
            server.request([user(prompt)], settings.decode_tokens, seed=seed, **sampling)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        records = run(complete_all(server.address, server.path, bodies))
        if not server.is_one_at_a_time:
            require_full_length(server, records, settings.decode_tokens)
        measures.append((f"{clients} clients", "decode_tokens_per_second", decode_rate(records, vocabulary.count)))
    return measures


def second_turn(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """Time to first token of a conversation's second turn, beside that of its first (cold) one."""
    measures: list[Measure] = []
    for index in range(settings.conversations_per_round):
        text = vocabulary.text_of(settings.conversation_tokens, seed=50_000 + 100 * round_index + index)
        messages = [user(text)]
        first = take_turn(server, messages)
        messages += [{"role": "assistant", "content": first.text()}, user(FOLLOW_UP)]
        second = take_turn(server, messages)
        cold, warm = first.first_token_seconds, second.first_token_seconds
        measures += [
            ("turn 1 (cold)", "first_token_seconds", cold),
            ("turn 2", "first_token_seconds", warm),
            ("turn 2 / turn 1", "ratio", warm / cold),
        ]
    return measures


def shared_prefix(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """How often a prefix is prefilled that all lanes' requests share and that arrive together."""
    system = vocabulary.text_of(settings.shared_prefix_tokens, seed=60_000 + round_index)
    shared = len(vocabulary.encode(chat_prefix(system), is_template=True))
    bodies = [
        server.request([{"role": "system", "content": system}, user(vocabulary.text_of(12, seed))], 16, **GREEDY)
        for seed in range(70_000, 70_000 + settings.lanes)
    ]
    before = server.prefilled_tokens()
    if before is None:
        return []
    records = run(complete_all(server.address, server.path, bodies))
    prefilled = (server.prefilled_tokens() or 0.0) - before
    own = sum(record.usage()["prompt_tokens"] - shared for record in records)
    slowest = max(record.first_token_seconds for record in records)
    return [
        ("prefix prefilled", "times", (prefilled - own) / shared),
        ("slowest of the clients", "first_token_seconds", slowest),
    ]


def longest_gap(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """The longest silence on running streams while a long prompt is read."""
    if server.is_one_at_a_time:
        return []
    room = settings.window_tokens - 3 * settings.short_prompt_tokens
    streams = [
        server.request([user(vocabulary.text_of(settings.short_prompt_tokens, seed))], room, **GREEDY)
        for seed in range(80_000, 80_000 + settings.lanes - 1)
    ]
    text = vocabulary.text_of(settings.long_prompt_tokens, seed=90_000 + round_index)
    arrival = server.request([user(text)], 4, **GREEDY)
    return run(_gap(server, streams, arrival))


async def _gap(
    server: RunningServer, stream_bodies: list[dict[str, Any]], arrival_body: dict[str, Any]
) -> list[Measure]:
    streams = [
        await open_stream(server.address, server.path, body, STREAMS_BEFORE_GAP_TOKENS) for body in stream_bodies
    ]
    try:
        await asyncio.wait_for(asyncio.gather(*(stream.started for stream in streams)), 60)
        arrival = await finish(await open_stream(server.address, server.path, arrival_body))
        if any(stream.ended.done() for stream in streams):
            raise BenchmarkError("a stream ended before the long prompt was read: the gap cannot be measured")
    finally:
        for stream in streams:
            stream.close()
    until = arrival.sent + arrival.first_token_seconds
    gap = max(gap_within(stream.record.text_times, arrival.sent, until) for stream in streams)
    return [
        ("7 streams", "longest_gap_seconds", gap),
        ("the long prompt", "first_token_seconds", arrival.first_token_seconds),
    ]


def daemon_cost(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """What superfluid's daemon process itself takes: memory when idle, CPU while it streams to all lanes."""
    if server.contender != "superfluid":
        return []
    idle_bytes = resident_bytes(server.pid)
    bodies = [
        server.request([user(vocabulary.text_of(settings.short_prompt_tokens, seed))], settings.daemon_tokens, **GREEDY)
        for seed in range(95_000 + 10 * round_index, 95_000 + 10 * round_index + settings.lanes)
    ]
    before = cpu_seconds(server.pid)
    records = run(complete_all(server.address, server.path, bodies))
    used = cpu_seconds(server.pid) - before
    tokens = sum(record.usage()["completion_tokens"] for record in records)
    return [
        ("idle", "resident_megabytes", idle_bytes / 1e6),
        (f"{settings.lanes} clients", "cpu_seconds_per_1000_tokens", used * 1000 / tokens),
    ]


SCENARIOS: dict[str, Scenario] = {
    "decode-greedy": decode_greedy,
    "decode-sampled": decode_sampled,
    "second-turn": second_turn,
    "shared-prefix": shared_prefix,
    "longest-gap": longest_gap,
    "daemon": daemon_cost,
    "chat-behind-agents": chat_behind_agents,
    "herd": herd,
    "returning": returning,
    "overcommit": overcommit,
    "hang-up": hang_up,
    "restart": restart,
}


# ---- counting


def decode_rate(records: list[StreamRecord], count: TokenCounter) -> float:
    """Tokens a second of all clients while all of them are running: from the last first token to the first last one.

    A server that never runs all of them at once is counted from its first token to its last instead.
    """
    start = max(record.text_times[0] for record in records)
    end = min(record.text_times[-1] for record in records)
    if end <= start:
        start = min(record.text_times[0] for record in records)
        end = max(record.text_times[-1] for record in records)
    return sum(tokens_between(record, start, end, count) for record in records) / (end - start)


def tokens_between(record: StreamRecord, start: float, end: float, count: TokenCounter) -> float:
    """Tokens after ``start`` up to ``end``. Each event counts for what its text comes to in tokens, in the proportion
    that makes the whole stream as long as the server says."""
    weights = [max(1, count(text)) for text in record.event_texts()]
    tokens = record.usage().get("completion_tokens") or sum(weights)
    within = sum(weight for weight, at in zip(weights, record.text_times, strict=True) if start < at <= end)
    return within * float(tokens) / sum(weights)


def gap_within(times: list[float], start: float, end: float) -> float:
    """The longest time between two neighbours of ``times`` that overlaps ``start``..``end``, the open one included."""
    longest = 0.0
    for earlier, later in zip(times, [*times[1:], max(end, times[-1])], strict=True):
        if later > start and earlier < end:
            longest = max(longest, later - earlier)
    return longest


def require_full_length(server: RunningServer, records: list[StreamRecord], tokens: int) -> None:
    """Raises BenchmarkError if a stream stopped early: the rates would not compare."""
    for record in records:
        got = record.usage().get("completion_tokens")
        if got != tokens:
            raise BenchmarkError(f"{server.contender} ended a stream after {got} of {tokens} tokens")
