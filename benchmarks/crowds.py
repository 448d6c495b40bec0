"""More work than lanes: scenarios about who runs when. Each is a function that loads one running server and returns
what it measured as ``(case, metric, value)``; METHODOLOGY.md says what each is good for and how it counts.
"""

import asyncio
import statistics
import time
from itertools import pairwise
from typing import Any

from benchmarks.client import (
    BenchmarkError,
    EventStream,
    StreamRecord,
    complete_all,
    finish,
    open_stream,
    run,
)
from benchmarks.measure import Measure, user
from benchmarks.prompts import Vocabulary, chat_prefix
from benchmarks.servers import RunningServer
from benchmarks.settings import GREEDY, BenchSettings

INTERACTIVE = {"x-superfluid-qos": "interactive"}
CHAT_DELAY_SECONDS = 1.0
CHAT_TOKENS = 32
POLL_SECONDS = 0.005
FREE_WITHIN_SECONDS = 60.0
WARM_SHARE = 0.5
"""A turn is warm if less than this share of its prompt was computed."""


def chat_behind_agents(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """A chat arrives a second after as many agents with long prompts as there are lanes."""
    if server.is_one_at_a_time:
        return []

    def agents(seed: int) -> list[dict[str, Any]]:
        texts = [vocabulary.text_of(settings.long_prompt_tokens, seed + lane) for lane in range(settings.lanes)]
        return [server.request([user(text)], settings.agent_tokens, **GREEDY) for text in texts]

    chat = server.request([user(vocabulary.text_of(settings.short_prompt_tokens, 110_000))], CHAT_TOKENS, **GREEDY)
    undisturbed = run(complete_all(server.address, server.path, agents(100_000 + 100 * round_index)))
    chatted, disturbed = run(_with_chat(server, agents(105_000 + 100 * round_index), chat))
    slowdown = seconds_until_all_ended(disturbed) / seconds_until_all_ended(undisturbed)
    gap = max(longest_gap_of(record.text_times) for record in [chatted, *disturbed])
    return [
        ("the chat", "first_token_seconds", chatted.first_token_seconds),
        ("all streams", "longest_gap_seconds", gap),
        ("the agents, with / without the chat", "ratio", slowdown),
    ]


async def _with_chat(
    server: RunningServer, agent_bodies: list[dict[str, Any]], chat_body: dict[str, Any]
) -> tuple[StreamRecord, list[StreamRecord]]:
    agents = [await open_stream(server.address, server.path, body) for body in agent_bodies]
    await asyncio.sleep(CHAT_DELAY_SECONDS)
    chat = await open_stream(server.address, server.path, chat_body, headers=INTERACTIVE)
    return await finish(chat), [await finish(agent) for agent in agents]


def herd(server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int) -> list[Measure]:
    """Many more requests than lanes, at once, with a long system message in common."""
    if server.is_one_at_a_time:
        return []
    system = vocabulary.text_of(settings.shared_prefix_tokens, seed=120_000 + round_index)
    shared = len(vocabulary.encode(chat_prefix(system), is_template=True))
    bodies = [
        server.request([{"role": "system", "content": system}, user(vocabulary.text_of(12, seed))], 16, **GREEDY)
        for seed in range(130_000, 130_000 + settings.crowd_clients)
    ]
    before = server.prefilled_tokens() or 0.0
    records = run(complete_all(server.address, server.path, bodies))
    own = sum(record.usage()["prompt_tokens"] - shared for record in records)
    prefilled = (server.prefilled_tokens() or 0.0) - before
    return [
        ("prefix prefilled", "times", (prefilled - own) / shared),
        ("median client", "first_token_seconds", statistics.median(record.first_token_seconds for record in records)),
    ]


def returning(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """More long conversations than lanes, each coming back in turn."""
    if server.is_one_at_a_time:
        return []
    conversations = [
        [user(vocabulary.text_of(settings.conversation_tokens, seed=140_000 + 100 * round_index + index))]
        for index in range(settings.returning_conversations)
    ]
    later: list[float] = []
    warm = 0
    for turn in range(settings.returning_turns):
        for index, messages in enumerate(conversations):
            if turn:
                messages.append(user(vocabulary.text_of(12, seed=150_000 + 10 * turn + index)))
            before = server.prefilled_tokens() or 0.0
            (record,) = run(complete_all(server.address, server.path, [server.request(messages, 32, **GREEDY)]))
            messages.append({"role": "assistant", "content": record.text()})
            if turn:
                later.append(record.first_token_seconds)
                prefilled = (server.prefilled_tokens() or 0.0) - before
                warm += prefilled < WARM_SHARE * record.usage()["prompt_tokens"]
    return [
        ("later turns", "first_token_seconds", statistics.median(later)),
        ("later turns", "warm_share", warm / len(later)),
    ]


def overcommit(
    server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Measure]:
    """Clients at once whose conversations take four times the KV of all lanes."""
    if server.is_one_at_a_time:
        return []
    room = 4 * settings.lanes * settings.window_tokens // settings.crowd_clients
    prompt_tokens = min(room, settings.window_tokens) - settings.crowd_tokens - 2 * settings.short_prompt_tokens
    texts = [
        vocabulary.text_of(prompt_tokens, seed=160_000 + 100 * round_index + client)
        for client in range(settings.crowd_clients)
    ]
    bodies = [server.request([user(text)], settings.crowd_tokens, **GREEDY) for text in texts]
    records = run(complete_all(server.address, server.path, bodies))
    whole = sum(record.usage().get("completion_tokens") == settings.crowd_tokens for record in records)
    return [
        (f"{settings.crowd_clients} clients", "seconds_until_all_ended", seconds_until_all_ended(records)),
        (f"{settings.crowd_clients} clients", "finished_share", whole / len(records)),
    ]


def hang_up(server: RunningServer, settings: BenchSettings, vocabulary: Vocabulary, round_index: int) -> list[Measure]:
    """All streaming clients disconnect at once; and one whose prompt is being read."""
    if server.is_one_at_a_time or server.active_lanes() is None:
        return []
    room = settings.window_tokens - 3 * settings.short_prompt_tokens
    streams = [
        server.request([user(vocabulary.text_of(settings.short_prompt_tokens, seed))], room, **GREEDY)
        for seed in range(170_000, 170_000 + settings.lanes)
    ]
    records, freed = run(_leave(server, streams, start_count=8))
    tick = statistics.median(later - earlier for record in records for earlier, later in pairwise(record.text_times))
    text = vocabulary.text_of(settings.long_prompt_tokens, seed=180_000 + round_index)
    _, freed_prompt = run(_leave(server, [server.request([user(text)], 8, **GREEDY)], start_count=0))
    return [
        (f"{settings.lanes} streams", "lanes_free_seconds", freed),
        (f"{settings.lanes} streams", "lanes_free_ticks", freed / tick),
        ("a prompt being read", "lanes_free_seconds", freed_prompt),
    ]


async def _leave(
    server: RunningServer, bodies: list[dict[str, Any]], start_count: int
) -> tuple[list[StreamRecord], float]:
    """Cuts all streams when each has begun, and waits until the server has no lane in use."""
    streams: list[EventStream] = [await open_stream(server.address, server.path, body, start_count) for body in bodies]
    if start_count:
        await asyncio.wait_for(asyncio.gather(*(stream.started for stream in streams)), 60)
    else:
        await asyncio.sleep(CHAT_DELAY_SECONDS)
    # What the server says of itself is behind by a message: let it say something first.
    await asyncio.to_thread(server.active_lanes)
    for stream in streams:
        stream.close()
    begun = time.perf_counter()
    while await asyncio.to_thread(server.active_lanes):
        if time.perf_counter() - begun > FREE_WITHIN_SECONDS:
            raise BenchmarkError(f"{server.contender} still has lanes in use {FREE_WITHIN_SECONDS:.0f} s later")
        await asyncio.sleep(POLL_SECONDS)
    return [stream.record for stream in streams], time.perf_counter() - begun


# ---- counting


def longest_gap_of(times: list[float]) -> float:
    """The longest time between two neighbours."""
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def seconds_until_all_ended(records: list[StreamRecord]) -> float:
    """From the first request to the last text of all."""
    return max(record.text_times[-1] for record in records) - min(record.sent for record in records)
