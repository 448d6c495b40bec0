"""Times the session API's encodings: best of several rounds, one process, no I/O.

Run with ``PYTHONPATH=src python benchmarks/micro/codec.py``. Token ids are drawn evenly from a vocabulary of 49,152, so
most take three bytes. The goals are for one event body of 32 tokens and for a session of 2,000 tokens, half of them
generated one a tick.
"""

import random
import sys
import time
from collections.abc import Callable
from functools import partial

from superfluid.domain.events import Event, Generated, GenParams, Message
from superfluid.native import json_codec, postcard, requests
from superfluid.native.responses import Cold, Inspected, Inspection, SessionSummary

ROUNDS = 7
MOMENT = 1_700_000_000_000


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The fastest round's time for one call."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        rounds.append((time.perf_counter() - started) / repeats)
    return min(rounds)


def make_tokens(count: int) -> tuple[int, ...]:
    source = random.Random(count)
    return tuple(source.randrange(49_152) for _ in range(count))


def make_inspection(prompt_tokens: int, tick_tokens: int, total: int = 2_000) -> Inspected:
    """A session of ``total`` tokens: a message of ``prompt_tokens``, the rest generated ``tick_tokens`` a record."""
    tokens = make_tokens(total)
    bodies: list[Message | Generated] = [Message(1, "word " * prompt_tokens, tokens[:prompt_tokens])]
    bodies += [
        Generated(tokens[start : start + tick_tokens], " word" * tick_tokens, 0, 0)
        for start in range(prompt_tokens, total, tick_tokens)
    ]
    events = tuple(Event(index, 1, MOMENT, body) for index, body in enumerate(bodies))
    summary = SessionSummary(1, None, 0, None, False, 0, 0, len(events), total, 0)
    params = GenParams(0.75, 1.0, 0.0, 0, 1)
    return Inspected(
        Inspection(summary, params, 1, 1, 2, False, 0, None, (), Cold(), tokens, events, 2, bytes(range(16)))
    )


def report(name: str, seconds: float, goal: str = "") -> None:
    print(f"{name:<58} {seconds * 1e6:>10.1f} us  {goal}")


def report_body() -> None:
    codec, body = postcard.body_codec(), Generated(make_tokens(32), " word" * 32, 0, 0)
    encoded = codec.encode(body)
    encode, decode = best_seconds(lambda: codec.encode(body), 5_000), best_seconds(lambda: codec.decode(encoded), 5_000)
    report("postcard, Generated of 32 tokens: encode", encode)
    report("postcard, Generated of 32 tokens: decode", decode)
    report("postcard, Generated of 32 tokens: both", encode + decode, "(goal 25 us)")
    event = Event(7, 1, MOMENT, body)
    json_text = json_codec.event_codec().encode(event)
    report("JSON, event of 32 tokens: encode", best_seconds(lambda: json_codec.event_codec().encode(event), 5_000))
    report("JSON, event of 32 tokens: decode", best_seconds(lambda: json_codec.event_codec().decode(json_text), 2_000))


def report_inspections() -> None:
    codec = postcard.response_codec()
    for name, inspection, goal in (
        ("one message", make_inspection(2_000, 1), "(goal 2,000 us)"),
        ("1,000 + 1,000 generated, 32 a record", make_inspection(1_000, 32), "(goal 2,000 us)"),
        ("1,000 + 1,000 generated, 1 a record", make_inspection(1_000, 1), "(goal 2,000 us)"),
        ("2,000 generated, 1 a record", make_inspection(0, 1), "(worst case)"),
    ):
        encoded = codec.encode(inspection)
        report(f"postcard, Inspect of 2,000, {name}: encode", best_seconds(partial(codec.encode, inspection), 20))
        report("    decode", best_seconds(partial(codec.decode, encoded), 20), goal)


def report_media() -> None:
    request = requests.PutMedia(random.Random(1).randbytes(2_000_000), "image/png")
    text = json_codec.request_codec().encode(request)
    seconds = best_seconds(lambda: json_codec.request_codec().decode(text), 1)
    report(f"JSON, PutMedia of {len(text) / 1e6:.1f} MB: decode", seconds, f"({len(text) / seconds / 1e6:.0f} MB/s)")
    encoded = postcard.request_codec().encode(request)
    report("postcard, the same: decode", best_seconds(lambda: postcard.request_codec().decode(encoded), 20))


def main() -> int:
    report_body()
    report_inspections()
    report_media()
    return 0


if __name__ == "__main__":
    sys.exit(main())
