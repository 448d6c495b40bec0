"""Times the session store and the way into it: starts, requests on the socket, the cost of a tick. No model, no worker.

Run with ``PYTHONPATH=src:. python benchmarks/micro/sessions.py [starts] [requests] [ticks]``. Everything is on a
temporary directory's disk. The goals: a start with 100,000 sessions within 1.2 of an empty store; Read, Inspect and
Fork of a session of 200 events under 5 ms (median, on the unix socket); with 10,000 of them Sessions and Tree under
150 ms, Purge of a leaf under 50 ms; a tick of 8 lanes well under 1.5 ms of
processor time; commits as often as ticks.
"""

import asyncio
import statistics
import struct
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw

from benchmarks.micro.codec import MOMENT, make_tokens
from superfluid.chat.model import open_text
from superfluid.clock import SystemClock
from superfluid.config import CompletionConfig
from superfluid.domain.events import Body, Created, Event, Generated, GenerationPrompt, GenParams, Message, PurgeMode
from superfluid.domain.job import Job
from superfluid.domain.model import ModelFacts
from superfluid.domain.reply import Finish
from superfluid.domain.statistics import InfillCounters, Warmth
from superfluid.native import postcard, requests, responses
from superfluid.native.protocol import Request, Response
from superfluid.native.socket_server import SocketServer
from superfluid.sessions.api import Sessions
from superfluid.sessions.backend import JobSink
from superfluid.sessions.counter import ReplyCounter
from superfluid.sessions.infill import InfillService
from superfluid.sessions.log import SessionLog
from superfluid.sessions.metering import CompletionMeter
from superfluid.sessions.text import SessionText
from superfluid.store.media import MediaPool
from superfluid.store.record import event_checksum
from superfluid.store.sqlite import SqliteStore

PARAMS = GenParams(0.75, 1.0, 0.0, 0, 1)
STARTS = 15
STORED_SESSIONS = 100_000
LONG_SESSIONS = 10_000
EVENTS = 200
TOUCHED = 400
LISTINGS = 15
PURGED = 50
LANES = 8
TICKS = 2_000


def main(names: Sequence[str]) -> int:
    parts: dict[str, Callable[[Path], None]] = {"starts": starts, "requests": on_socket, "ticks": ticks}
    for name, part in parts.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as directory:
                part(Path(directory))
    return 0


def report(name: str, milliseconds: float, goal: str = "") -> None:
    print(f"{name:<62} {milliseconds:>10.3f} ms  {goal}", flush=True)


# ---- stores


def fill(path: Path, sessions: int, events: int, *, first: int = 1) -> None:
    """Writes ``sessions`` logs of ``events`` records straight into the tables, as a conversation of short ticks."""
    SqliteStore(path).close()
    bodies = [postcard.body_codec().encode(body) for body in conversation(events)]
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF")
    columns = "id, fork_at, origin, epoch, start, events, tokens, open_tool_calls, is_archived, meta_version"
    columns += ", generation, is_purged, touched_unix_ms, qos_class, is_batch_invariant, is_generating"
    with connection:
        for session in range(first, first + sessions):
            row = (session, 0, 0, 1, 1, events, 2 * events, 0, 0, 0, 0, 0, MOMENT + session, 2, 0, 0)
            connection.execute(f"INSERT INTO session ({columns}) VALUES ({','.join('?' * 16)})", row)
            connection.executemany(
                "INSERT INTO event VALUES (?, ?, 1, ?, ?, ?)",
                [
                    (session, number, MOMENT, body, event_checksum(session, number, 1, MOMENT, body))
                    for number, body in enumerate(bodies)
                ],
            )
    connection.close()


def conversation(events: int) -> list[Body]:
    tokens = make_tokens(40)
    bodies: list[Body] = [Created(None, PARAMS), Message(1, "word " * 40, tokens), GenerationPrompt(tokens[:4])]
    return [*bodies, *(Generated((number % 268,), " word", 0, 0) for number in range(events - 3))][:events]


def starts(directory: Path) -> None:
    """How long it takes to open the store, and to list what is in it."""
    few, many = directory / "few.db", directory / "many.db"
    SqliteStore(few).close()
    fill(many, STORED_SESSIONS, 3)
    medians = [_open_seconds(path) for path in (few, many)]
    report("open an empty store", medians[0] * 1000)
    report(f"open a store of {STORED_SESSIONS:,} sessions", medians[1] * 1000, f"(ratio {medians[1] / medians[0]:.2f})")
    store = SqliteStore(many)
    started = time.perf_counter()
    rows = store.rows()
    report(f"list {len(rows):,} sessions", (time.perf_counter() - started) * 1000)
    store.close()


def _open_seconds(path: Path) -> float:
    seconds = []
    for _ in range(STARTS):
        started = time.perf_counter()
        store = SqliteStore(path)
        seconds.append(time.perf_counter() - started)
        store.close()
    return statistics.median(seconds)


# ---- requests


class IdleBackend:
    """``GenerationBackend`` whose jobs are driven from outside."""

    def __init__(self) -> None:
        self.sinks: list[JobSink] = []
        self.is_ready = True

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            architecture="none", description="none", vocabulary_tokens=268, window_tokens=65536,
            trained_window_tokens=65536, lanes=LANES, kv_bytes=0, weights_bytes=0, parameters=0, flash_attention=False,
            can_truncate=True, threads=1, engine="none", engine_build="", state_key="",
        )  # fmt: skip

    def submit(self, job: Job, sink: JobSink) -> None:
        self.sinks.append(sink)

    def pin(self, session: int, deadline_unix_ms: int) -> None: ...

    def set_background_rate(self, divisor: int) -> None: ...

    async def size_image(self, blob: str) -> list[int]:
        raise NotImplementedError

    def cancel(self, job_id: int) -> None: ...

    def warmth(self, session: int, tokens: "array[int]") -> Warmth:
        return Warmth()

    async def forget(self, sessions: Sequence[int]) -> None: ...


def build(path: Path) -> tuple[SqliteStore, SessionLog, Sessions, IdleBackend]:
    text = open_text(None)
    session_text = SessionText(text.tokenizer, text.codec, text.turns)
    store, backend = SqliteStore(path), IdleBackend()
    log = SessionLog(store, postcard.body_codec(), clock=SystemClock(), reader=ThreadPoolExecutor(1))
    counter, executor, counters = ReplyCounter(), ThreadPoolExecutor(1), InfillCounters()
    sessions = Sessions(
        log,
        backend,
        lambda: session_text,
        counter=counter,
        executor=executor,
        infill=InfillService(backend, counter=counter, executor=executor, counters=counters),
        meter=CompletionMeter(CompletionConfig(), time.monotonic, counters),
        unix_ms=lambda: MOMENT,
        metrics_text=str,
        set_log_level=lambda _: None,
        media_pool=MediaPool(path.parent / "media"),
        decode_body=postcard.body_codec().decode,
    )
    return store, log, sessions, backend


class SocketClient:
    """One connection; the reply is received whole and not decoded, as that is the client's time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def call(self, request: Request) -> bytes:
        payload = postcard.request_codec().encode(request)
        self._writer.write(struct.pack("<I", len(payload)) + payload)
        (length,) = struct.unpack("<I", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)


def on_socket(directory: Path) -> None:
    fill(directory / "long.db", LONG_SESSIONS, EVENTS)
    asyncio.run(_on_socket(directory))


async def _on_socket(directory: Path) -> None:
    store, _, sessions, _ = build(directory / "long.db")
    server = SocketServer(sessions, directory / "s.sock")
    await server.start()
    client = SocketClient(*await asyncio.open_unix_connection(str(directory / "s.sock")))
    kinds: dict[str, Callable[[int], Request]] = {
        "Read": lambda session: requests.Read(session, 0),
        "Inspect": lambda session: requests.Inspect(session),
        "Fork": lambda session: requests.Fork(session, EVENTS, None),
    }
    # Spread over the file, and every session only once: the first touch reads it and raises its epoch.
    for index, (name, make) in enumerate(kinds.items()):
        touched = range(1 + index, LONG_SESSIONS, LONG_SESSIONS // TOUCHED)
        for temperature in ("first touch", "open already"):
            milliseconds = []
            for session in list(touched)[: TOUCHED if temperature == "first touch" else TOUCHED // 4]:
                request = make(session) if temperature == "first touch" else make(1 + index)
                started = time.perf_counter()
                reply = decode(await client.call(request))
                milliseconds.append((time.perf_counter() - started) * 1000)
                assert not isinstance(reply, responses.Err), reply
            p99 = statistics.quantiles(milliseconds, n=100)[98]
            goal = f"(goal 5, p99 {p99:.2f})"
            report(
                f"{name}, {EVENTS} events of {LONG_SESSIONS:,} sessions, {temperature}",
                statistics.median(milliseconds),
                goal,
            )
    await _listings(client)
    await _purges(client)
    await server.stop()
    store.close()


async def _listings(client: SocketClient) -> None:
    """Everything that is there, forks of before included."""
    listings: dict[str, Request] = {"Sessions": requests.Sessions(True), "Tree": requests.Tree()}
    for name, request in listings.items():
        milliseconds = []
        for _ in range(LISTINGS):
            started = time.perf_counter()
            reply = await client.call(request)
            milliseconds.append((time.perf_counter() - started) * 1000)
        report(
            f"{name} of {LONG_SESSIONS:,} sessions, {len(reply):,} bytes", statistics.median(milliseconds), "(goal 150)"
        )


async def _purges(client: SocketClient) -> None:
    """Leaves that nobody has touched since the start, and one of all of whose events others have a copy."""
    for mode in PurgeMode:
        milliseconds = []
        for session in range(4, LONG_SESSIONS, LONG_SESSIONS // PURGED):
            if mode is PurgeMode.REROOT:
                session += 1
                await client.call(requests.Fork(session, EVENTS, None))
            started = time.perf_counter()
            reply = decode(await client.call(requests.Purge(session, 0, mode)))
            milliseconds.append((time.perf_counter() - started) * 1000)
            assert not isinstance(reply, responses.Err), reply
        kind = "a leaf" if mode is PurgeMode.CASCADE else "one with a fork"
        worst = (
            f"(goal 50, worst {max(milliseconds):.2f})"
            if mode is PurgeMode.CASCADE
            else f"(worst {max(milliseconds):.2f})"
        )
        report(
            f"Purge of {kind}, {EVENTS} events of {LONG_SESSIONS:,} sessions", statistics.median(milliseconds), worst
        )


def decode(payload: bytes) -> Response | None:
    """Only as far as to tell an error."""
    return postcard.response_codec().decode(payload) if payload[0] == 13 else None


# ---- ticks


def ticks(directory: Path) -> None:
    asyncio.run(_ticks(directory))


async def _ticks(directory: Path) -> None:
    """Eight generations record a token each a tick; the next tick comes when the tick before it is durable."""
    store, log, sessions, backend = build(directory / "ticks.db")
    turns = []
    for _ in range(LANES):
        session = await sessions.create(None, PARAMS)
        await sessions.append_message(session, 1, "hello")
        turns.append(await sessions.generate(session, 60_000))
    readers = [asyncio.ensure_future(_drain(turn)) for turn in turns]
    for sink in backend.sinks:
        sink.started(0)
    await asyncio.sleep(0.1)
    before, started = store.statistics(), time.perf_counter()
    own, process = time.thread_time(), time.process_time()
    for number in range(TICKS):
        for sink in backend.sinks:
            sink.tokens((97 + number % 26,), ())
        await log.settled()
    loop_seconds = time.thread_time() - own
    process_seconds, elapsed = time.process_time() - process, time.perf_counter() - started
    after = store.statistics()
    report("tick of 8 lanes, recorded and durable, wall", elapsed / TICKS * 1000)
    report("    processor time of all threads", process_seconds / TICKS * 1000)
    report("    of it the event loop's", loop_seconds / TICKS * 1000)
    print(f"    commits a second: {(after.commits_total - before.commits_total) / elapsed:.0f}")
    for sink in backend.sinks:
        sink.finished(Finish.LENGTH)
    await asyncio.gather(*readers)
    await _ticks_apart(sessions, backend, store)
    await asyncio.get_running_loop().run_in_executor(None, store.close)


async def _ticks_apart(sessions: Sessions, backend: IdleBackend, store: SqliteStore) -> None:
    """The same with 10 ms between ticks, so that nothing spins: what a tick costs in processor time."""
    backend.sinks.clear()
    readers = []
    for _ in range(LANES):
        session = await sessions.create(None, PARAMS)
        await sessions.append_message(session, 1, "hello")
        readers.append(asyncio.ensure_future(_drain(await sessions.generate(session, 60_000))))
    for sink in backend.sinks:
        sink.started(0)
    await asyncio.sleep(0.1)
    idle = time.process_time()
    for _ in range(200):
        await asyncio.sleep(0.01)
    idle = (time.process_time() - idle) / 200
    process, own = time.process_time(), time.thread_time()
    for number in range(400):
        for sink in backend.sinks:
            sink.tokens((97 + number % 26,), ())
        await asyncio.sleep(0.01)
    process, own = time.process_time() - process, time.thread_time() - own
    report("tick of 8 lanes, 10 ms apart, processor time", (process / 400 - idle) * 1000, "(goal well under 1.5)")
    report("    of it the event loop's", (own / 400 - idle) * 1000)
    for sink in backend.sinks:
        sink.finished(Finish.LENGTH)
    await asyncio.gather(*readers)
    report("    last commit", store.statistics().last_commit_seconds * 1000)


async def _drain(turn: object) -> list[Event]:
    return [item async for batch in turn for item in batch if isinstance(item, Event)]  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
