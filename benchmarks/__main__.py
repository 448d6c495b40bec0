"""``python -m benchmarks``: runs the comparisons in interleaved rounds, prints the table and keeps every sample."""

import argparse
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.client import BenchmarkError
from benchmarks.prompts import Vocabulary
from benchmarks.report import markdown
from benchmarks.samples import Sample
from benchmarks.scenarios import SCENARIOS
from benchmarks.servers import running
from benchmarks.settings import CONTENDERS, BenchSettings, Contender, quick, settings_for
from superfluid.config import home_directory
from superfluid.errors import PullError
from superfluid.models.embedded import fetch_embedded_model
from superfluid.models.progress import LineProgress

OUTPUT = Path(__file__).resolve().parent / "out"
IN_PROCESS = "speculation"
"""A scenario of superfluid's alone, without a server."""
DECODE_MODES = {"decode-greedy": "greedy", "decode-sampled": "sampled"}


def main() -> int:
    """Exit code 0 when everything asked for was measured, 1 when a contender failed (the rest is still shown)."""
    options = parse()
    settings = settings_of(options)
    samples: list[Sample] = []
    failures: list[str] = []
    environment = describe_environment(settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server under test is ended too
    try:
        measure_all(options, settings, samples, failures)
    except KeyboardInterrupt:
        failures.append("interrupted: the table holds what was measured until then")
    print(markdown(samples))
    print("\n" + "; ".join(f"{key}: {value}" for key, value in environment.items()))
    for failure in failures:
        print(f"FAILED {failure}")
    note(f"every sample: {save(samples, environment, failures)}")
    return 1 if failures else 0


def measure_all(
    options: argparse.Namespace, settings: BenchSettings, samples: list[Sample], failures: list[str]
) -> None:
    """Appends to ``samples`` and ``failures`` as it goes, so that an interrupted run has something to show."""
    with Vocabulary(settings.model) as vocabulary:
        for scenario, round_index, contender in schedule(options, settings.rounds):
            note(f"{scenario}, round {round_index + 1} of {settings.rounds}: {contender}")
            try:
                with machine_to_itself():
                    samples += measure(scenario, contender, settings, vocabulary, round_index)
            except BenchmarkError as error:
                failures.append(f"{scenario}, round {round_index + 1}, {contender}: {error}")
                note(f"FAILED: {error}")


@contextmanager
def machine_to_itself() -> Iterator[None]:
    """Waits for other benchmark runs of this user: two at once would measure each other."""
    with open(Path(tempfile.gettempdir()) / f"superfluid-benchmarks-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the embedded model)")
    parser.add_argument(
        "--only", action="append", choices=[*SCENARIOS, IN_PROCESS], help="run this scenario (repeatable)"
    )
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="run this contender (repeatable)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender's engine (default 2)")
    parser.add_argument("--quick", action="store_true", help="one round of short streams: does it all work?")
    return parser.parse_args()


def settings_of(options: argparse.Namespace) -> BenchSettings:
    model: Path = options.model or embedded_model()
    settings = BenchSettings(model=model.resolve(), threads=options.threads, rounds=options.rounds or 5)
    return quick(settings) if options.quick else settings


def embedded_model() -> Path:
    """The default model, fetched on first use."""
    try:
        return fetch_embedded_model(home_directory(os.environ), LineProgress(sys.stderr))
    except PullError as error:
        raise SystemExit(f"bench: {error.message}") from error


def schedule(options: argparse.Namespace, rounds: int) -> Iterator[tuple[str, int, Contender]]:
    """Scenario by scenario, round by round; every other round in reverse order, so that drift hits all alike."""
    contenders: list[Contender] = [name for name in CONTENDERS if not options.contender or name in options.contender]
    for scenario in options.only or (*SCENARIOS, IN_PROCESS):
        for round_index in range(rounds):
            for contender in contenders if round_index % 2 == 0 else reversed(contenders):
                yield scenario, round_index, contender


def measure(
    scenario: str, contender: Contender, settings: BenchSettings, vocabulary: Vocabulary, round_index: int
) -> list[Sample]:
    """Starts the contender, measures, stops it. Raises BenchmarkError."""
    settings = settings_for(scenario, settings)
    if scenario == IN_PROCESS:
        measures = speculation(settings) if contender == "superfluid" else []
    elif contender == "bare loop":
        measures = bare_loop(scenario, settings, vocabulary)
    else:
        has_template = vocabulary.has_template
        with running(contender, settings, vocabulary.end_tokens(), has_template=has_template) as server:
            measures = SCENARIOS[scenario](server, settings, vocabulary, round_index)
    return [Sample(scenario, case, metric, contender, round_index, value) for case, metric, value in measures]


def bare_loop(scenario: str, settings: BenchSettings, vocabulary: Vocabulary) -> list[tuple[str, str, float]]:
    """The loop knows decode rates only. Its prompts are as long as what the servers make of theirs."""
    mode = DECODE_MODES.get(scenario)
    if mode is None:
        return []
    command = [sys.executable, "-m", "benchmarks.bare_loop", "--model", str(settings.model), "--mode", mode]
    command += ["--clients", *map(str, settings.client_counts), "--lanes", str(settings.lanes)]
    command += ["--window", str(settings.window_tokens), "--threads", str(settings.threads)]
    prompt_tokens = vocabulary.chat_length(vocabulary.text_of(settings.short_prompt_tokens, seed=1))
    command += ["--prompt-tokens", str(prompt_tokens), "--steps", str(settings.decode_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"the bare loop failed: {done.stderr[-1000:]}")
    rates: dict[str, float] = json.loads(done.stdout)
    return [(f"{clients} clients", "decode_tokens_per_second", rate) for clients, rate in rates.items()]


def speculation(settings: BenchSettings) -> list[tuple[str, str, float]]:
    """One round of the benchmark of guessing ahead, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.micro.speculation", str(settings.model), "--json"]
    command += ["--threads", str(settings.threads), "--edit-tokens", str(settings.edit_tokens)]
    command += ["--prose-tokens", str(settings.prose_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"the benchmark of guessing ahead failed: {done.stderr[-1000:]}")
    return [(case, metric, value) for case, metric, value in json.loads(done.stdout)]


def describe_environment(settings: BenchSettings) -> dict[str, Any]:
    """What somebody else needs to know to compare."""
    versions = {name: metadata.version(name) for name in ("llama-cpp-python", "xllamacpp")}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "model": settings.model.name,
        "lanes": settings.lanes,
        "window": settings.window_tokens,
        "threads": settings.threads,
        "rounds": settings.rounds,
        "cores": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()} {processor_name()}".strip(),
        "python": platform.python_version(),
        "load at start": round(os.getloadavg()[0], 2),
        "commit": commit.stdout.strip() or "unknown",
    } | versions


def processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    names = [
        line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else ""


def save(samples: list[Sample], environment: dict[str, Any], failures: list[str]) -> Path:
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    document = {"environment": environment, "failures": failures, "samples": [sample.as_json() for sample in samples]}
    path.write_text(json.dumps(document, indent=1))
    return path


def note(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
