"""Step times while another process wants a core: with all threads, with one, and with as many as the policy says.

Run ``PYTHONPATH=src:. python -m benchmarks.micro.threads MODEL.gguf [decode|chunks|waits|served] [SECONDS]`` on a
quiet machine with two cores. A bare loop over the engine: four lanes that decode, or ``chunks`` of 64 prompt tokens.
Each run is a fresh process that has learned nothing. The burner is a process in a session of its own, pinned to one
core, which computes for 0, 30 or 100 of each 100 ms. Two rounds, the second in the opposite order. ``waits`` tries
other ways of libgomp's threads to wait for each other, all with two threads. ``served`` has no burner: decode rates of
whole servers with the policy and without, for 1 and 8 streaming clients, and how often the policy changed its mind.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.client import complete_all
from benchmarks.client import run as run_clients
from benchmarks.micro.telemetry import counting_body, server
from benchmarks.prompts import Vocabulary
from benchmarks.scenarios import decode_rate
from benchmarks.servers import CHAT_PATH
from superfluid.clock import SystemClock
from superfluid.engine.interface import Row
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.engine.machine import usable_cpus
from superfluid.scheduling.plan import Chunk, DecodeLane, StepPlan
from superfluid.worker.core_use import CoreUse, WaitedTime
from superfluid.worker.executor import Execution
from superfluid.worker.interruption import Interruption
from superfluid.worker.thread_control import ThreadControl
from superfluid.worker.threads import ThreadPolicy

LANES = 4
BURNS = (0.0, 0.3, 1.0)
BURN_PERIOD_SECONDS = 0.1
PROMPT_TOKENS = 100
LONGEST_TOKENS = 400
CHUNK_TOKENS = 64
SERVED_PAIRS = 3
SERVED_TOKENS = 200
WAITS: tuple[dict[str, str], ...] = (
    {},
    {"OMP_WAIT_POLICY": "active"},
    {"OMP_WAIT_POLICY": "passive"},
    {"GOMP_SPINCOUNT": "1000"},
    {"GOMP_SPINCOUNT": "10000"},
    {"GOMP_SPINCOUNT": "100000"},
)


def main(model: str, kind: str, seconds: float) -> None:
    if kind == "served":
        compare_servers(Path(model))
        return
    cases: list[tuple[str, str, dict[str, str]]] = [(how, how, {}) for how in ("2", "1", "adapted")]
    if kind == "waits":
        cases = [(" ".join(f"{name}={value}" for name, value in wait.items()), "2", wait) for wait in WAITS]
    for burn in BURNS:
        for order in (1, -1):
            for label, how, environment in cases[::order]:
                seconds_each = run(model, "chunks" if kind == "chunks" else "decode", how, seconds, burn, environment)
                print(f"burner {burn:3.0%}  threads {label or 'default':25} {_summary(seconds_each)}", flush=True)


def run(model: str, kind: str, how: str, seconds: float, burn: float, environment: dict[str, str]) -> list[float]:
    """The seconds between one step's end and the next one's, of a process of its own."""
    measured = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.micro.threads", "--measure", model, kind, how, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        start_new_session=True,
    )
    assert measured.stdin is not None
    assert measured.stdout is not None
    measured.stdout.readline()
    with burner(burn):
        output, _ = measured.communicate("go\n")
    return [float(value) for value in json.loads(output)]


@contextmanager
def burner(share: float) -> Iterator[None]:
    if not share:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.micro.threads", "--burn", str(share)],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def compare_servers(model: Path) -> None:
    rates: dict[tuple[str, int], list[float]] = {}
    for index in range(2 * SERVED_PAIRS):
        flag = "--threads-adapt" if index % 4 in (0, 3) else "--no-threads-adapt"
        with tempfile.TemporaryDirectory(prefix="superfluid-bench-") as home:
            flags = [flag, "--max-batch", "8", "--max-context", "2048", "--no-tui", "--log-filter", "debug"]
            with server(model, Path(home), flags, has_terminal=False) as (address, name):
                run_clients(complete_all(address, CHAT_PATH, [counting_body(name, client, 16) for client in range(8)]))
                for clients in (1, 8):
                    bodies = [counting_body(name, client, SERVED_TOKENS) for client in range(clients)]
                    records = run_clients(complete_all(address, CHAT_PATH, bodies))
                    with Vocabulary(model) as vocabulary:
                        rate = decode_rate(records, vocabulary.count)
                    rates.setdefault((flag, clients), []).append(rate)
                    print(f"{flag:20} {clients} clients  {rate:6.1f} tokens/s", flush=True)
            changes = (Path(home) / "server.log").read_text().count("the number of threads changed")
            print(f"{flag:20} the policy changed its mind {changes} times", flush=True)
    for clients in (1, 8):
        on, off = (sum(rates[flag, clients]) for flag in ("--threads-adapt", "--no-threads-adapt"))
        print(f"{clients} clients, with / without: {on / off:.3f}")


def burn(share: float) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("burning", flush=True)
    while True:
        begun = time.perf_counter()
        while time.perf_counter() - begun < share * BURN_PERIOD_SECONDS:
            pass
        time.sleep(max(0.0, begun + BURN_PERIOD_SECONDS - time.perf_counter()))


def measure(model: str, kind: str, how: str, seconds: float) -> None:
    engine = LlamaEngine(Path(model), LlamaOptions(lanes=LANES, window_tokens=1024, threads=2))
    interruption = Interruption(engine, SystemClock())
    cpus = usable_cpus()
    control = ThreadControl(
        ThreadPolicy(2 if how == "adapted" else 1, len(cpus)),
        engine.set_threads,
        interruption,
        SystemClock(),
        read_cores=CoreUse(cpus).read,
        read_waited=WaitedTime().read,
    )
    if how != "adapted":
        engine.set_threads(int(how))
    source = np.random.default_rng(1)
    for lane in range(LANES):
        engine.step([Row(lane, 0, source.integers(1000, 20_000, PROMPT_TOKENS, dtype=np.int32), "none")])
    step = _chunk_step(engine, interruption) if kind == "chunks" else _decode_step(engine, interruption)
    print("ready", flush=True)
    sys.stdin.readline()
    times = [time.perf_counter()]
    with control.watching():
        while times[-1] - times[0] < seconds:
            control.before_tick()
            plan, execution = step()
            control.after_tick(plan, execution)
            if not (execution.is_decode_cut or execution.is_chunk_cut):
                times.append(time.perf_counter())
    print(json.dumps(np.diff(times).tolist()))


def _decode_step(engine: LlamaEngine, interruption: Interruption) -> Callable[[], tuple[StepPlan, Execution]]:
    plan = StepPlan(decodes=tuple(DecodeLane(lane, lane) for lane in range(LANES)))
    jobs = frozenset(range(LANES))

    def step() -> tuple[StepPlan, Execution]:
        if engine.length(0) > LONGEST_TOKENS:
            for lane in range(LANES):
                engine.truncate(lane, PROMPT_TOKENS)
        begun = time.perf_counter()
        with interruption.during_decode(jobs):
            rows = [Row(lane, engine.length(lane), np.array([1000], np.int32)) for lane in range(LANES)]
            result = engine.step(rows)
        return plan, Execution(is_decode_cut=0 in result.completed, decode_seconds=time.perf_counter() - begun)

    return step


def _chunk_step(engine: LlamaEngine, interruption: Interruption) -> Callable[[], tuple[StepPlan, Execution]]:
    tokens = np.arange(1000, 1000 + CHUNK_TOKENS, dtype=np.int32)
    plan = StepPlan(chunk=Chunk(0, 0, PROMPT_TOKENS, CHUNK_TOKENS, False))

    def step() -> tuple[StepPlan, Execution]:
        engine.truncate(0, PROMPT_TOKENS)
        begun = time.perf_counter()
        assert plan.chunk is not None
        with interruption.during(plan.chunk):
            result = engine.step([Row(0, PROMPT_TOKENS, tokens, "none")])
        is_cut = result.completed[0] < CHUNK_TOKENS
        return plan, Execution(is_chunk_cut=is_cut, chunk_seconds=time.perf_counter() - begun)

    return step


def _summary(seconds: list[float]) -> str:
    middle, tail = np.percentile(seconds, (50, 95))
    numbers = f"median {1000 * middle:7.1f}  mean {1000 * np.mean(seconds):7.1f}  95 % {1000 * tail:7.1f}"
    return f"{numbers}  longest {1000 * max(seconds):7.1f} ms  ({len(seconds)} steps)"


if __name__ == "__main__":
    if sys.argv[1] == "--burn":
        burn(float(sys.argv[2]))
    elif sys.argv[1] == "--measure":
        measure(sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]))
    else:
        main(
            sys.argv[1],
            sys.argv[2] if len(sys.argv) > 2 else "decode",
            float(sys.argv[3]) if len(sys.argv) > 3 else 5.0,
        )
