"""What guessing ahead is worth: the bound n*t(1)/t(n), a dictated edit of a 300-line file, and free prose.

Run ``PYTHONPATH=src python -m benchmarks.micro.speculation MODEL.gguf`` on a quiet machine: one lane, two threads, no
server. METHODOLOGY.md says how it counts.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.prompts import Vocabulary
from superfluid.clock import SystemClock
from superfluid.domain.job import Job
from superfluid.domain.request import SamplingParams
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.interface import Row, StepResult
from superfluid.engine.lane_state import State
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.worker.inbox import Inbox
from superfluid.worker.loop import TickLoop
from superfluid.worker.protocol import FromWorker, Submit, Tick
from superfluid.worker.settings import EngineSettings

LINES: Final = 300
BOUND_SIZES: Final = (1, 4, 8, 12, 16)
BOUND_SAMPLES: Final = 4
EDIT_QUADS: Final = 3
PROSE_QUADS: Final = 1
"""Of two pairs each, in a round; of prose for each story."""
PROSE: Final = ("Write a short story about a lighthouse.", "Explain how rainbows form.", "Describe a baker's day.")
GUESSING: Final = SpeculationRules(strategy="prompt-lookup")

Measure = tuple[str, str, float]
_ids = count(1)


class DictatedEngine(LlamaEngine):
    """With a ``dictation``, what it says behind the prompt is that. The prompt's state is computed once and then put
    back: what is timed begins behind it."""

    dictation: Sequence[int] = ()
    _prompt: Sequence[int] = ()
    _state: State = b""

    def prepare(self, prompt: Sequence[int]) -> None:
        """Computes the prompt but for its last two tokens."""
        self.clear(0)
        super().step([Row(0, 0, np.array(prompt[:-2], np.int32), "none")])
        self._prompt, self._state = prompt, self.export_lane(0)
        self.clear(0)

    def step(self, rows: Sequence[Row]) -> StepResult:
        row = rows[0]
        end = row.position + len(row.tokens)
        if end < len(self._prompt):
            self._lengths[0] = end
            return StepResult(np.empty((0, self._vocabulary_tokens), np.float32), (len(row.tokens),))
        if row.position < len(self._prompt):
            count = len(row.tokens)
            self.import_lane(0, self._state, len(self._prompt) - 2)
            rows = [Row(0, len(self._prompt) - 2, np.array(self._prompt[-2:], np.int32), row.wants_logits)]
            return StepResult(self._dictate(super().step(rows), rows[0]).logits, (count,))
        return self._dictate(super().step(rows), row)

    def _dictate(self, result: StepResult, row: Row) -> StepResult:
        end = row.position + len(row.tokens)
        first = row.position + 1 if row.wants_logits == "all" else end
        for index, position in enumerate(range(first, end + 1) if row.wants_logits != "none" else ()):
            if 0 <= position - len(self._prompt) < len(self.dictation):
                result.logits[index][self.dictation[position - len(self._prompt)]] = 1000.0
        return result


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One reply, from its first token to its last, greedy. Seconds; ``sampling_seconds`` is the drawing alone, and
    ``other_seconds`` all that is neither that nor the engine's."""

    seconds_per_token: float
    steps: int
    proposed: int
    accepted: int
    sampling_seconds: float
    other_seconds: float
    seconds: float


def timed_reply(engine: DictatedEngine, rules: SpeculationRules, prompt: Sequence[int], tokens: int) -> Timed:
    """On a scheduler that has learned nothing yet."""
    settings = EngineSettings(engine="llamacpp", model="", lanes=1, window_tokens=None, max_queue=1, speculation=rules)
    told: list[Tick] = []

    def take(message: FromWorker) -> None:
        if isinstance(message, Tick):
            told.append(message)

    def drawn() -> int:
        return sum(len(output.tokens) // 4 for tick in told for output in tick.outputs)

    loop = TickLoop(engine, settings, Inbox(), take, clock=SystemClock())
    job = Job(
        job_id=next(_ids),
        tokens=np.array(prompt, "<i4").tobytes(),
        prompt_tokens=len(prompt),
        max_tokens=tokens,
        sampling=SamplingParams(temperature=0),
        ignore_eos=True,
    )
    loop.take(Submit(job))
    while not drawn():
        loop.tick()
    first, before = drawn(), len(told)
    begun = time.perf_counter()
    while loop.tick():
        pass
    seconds = time.perf_counter() - begun
    engine.clear(0)
    records = [tick.record for tick in told[before:]]
    sampling = sum(record.sample_seconds for record in records)
    return Timed(
        seconds_per_token=seconds / (drawn() - first),
        steps=sum(record.decode_lanes for record in records),
        proposed=records[-1].spec_proposed_total,
        accepted=records[-1].spec_accepted_total,
        sampling_seconds=sampling,
        other_seconds=seconds - sampling - sum(record.engine_seconds for record in records),
        seconds=seconds,
    )


def pairs(engine: DictatedEngine, prompt: Sequence[int], tokens: int) -> Iterator[tuple[Timed, Timed]]:
    """Plain and guessed: A B, then B A. The engine is prepared for the prompt."""
    plain = timed_reply(engine, NO_SPECULATION, prompt, tokens)
    yield plain, timed_reply(engine, GUESSING, prompt, tokens)
    guessed = timed_reply(engine, GUESSING, prompt, tokens)
    yield timed_reply(engine, NO_SPECULATION, prompt, tokens), guessed


def step_seconds(engine: DictatedEngine, prompt: Sequence[int]) -> dict[int, list[float]]:
    """Times of steps of several sizes behind ``prompt``."""
    tokens = np.array(prompt[: max(BOUND_SIZES)], np.int32)
    engine.step([Row(0, 0, np.array(prompt, np.int32), "last")])
    seconds: dict[int, list[float]] = {size: [] for size in BOUND_SIZES}
    for _ in range(BOUND_SAMPLES):
        for size, samples in seconds.items():
            begun = time.perf_counter()
            engine.step([Row(0, len(prompt), tokens[:size], "all")])
            samples.append(time.perf_counter() - begun)
            engine.truncate(0, len(prompt))
    engine.clear(0)
    return seconds


def best_bound(seconds: dict[int, list[float]]) -> tuple[int, float]:
    """The size whose tokens come fastest, and how many times as fast as one by one."""
    medians = {size: statistics.median(samples) for size, samples in seconds.items()}
    return max(((size, size * medians[1] / median) for size, median in medians.items()), key=lambda bound: bound[1])


def source_lines() -> list[str]:
    """Functions that resemble each other, as they do."""
    choose = random.Random(3).choice
    verbs = ("load", "merge", "split", "check", "open", "read", "send", "find", "trim", "copy")
    nouns = ("user", "order", "item", "page", "token", "row", "batch", "frame", "event", "shard")
    lines: list[str] = []
    for number in range(LINES // 6 + 1):
        noun, other = choose(nouns), choose(nouns)
        lines += [
            f"def {choose(verbs)}_{noun}_{number}({other}, limit={number * 7 % 90}):",
            f"    {noun} = {choose(verbs)}_{choose(nouns)}({other}, {number * 31 % 100})",
            f"    if len({noun}) > limit:",
            f'        raise ValueError("{noun} {number * 13} is too long")',
            f"    return {noun}.{choose(verbs)}({choose(nouns)}={other})",
            "",
        ]
    return lines[:LINES]


def edited(lines: list[str]) -> list[str]:
    """A name changed in some places, and a line added now and then."""
    result: list[str] = []
    for number, line in enumerate(lines):
        result += ["    # checked above"] if number % 35 == 12 else []
        result.append(line.replace("limit", "bound") if number % 21 == 9 else line)
    return result


def measure(model: Path, *, rounds: int, edit_tokens: int, prose_tokens: int, threads: int = 2) -> Iterator[Measure]:
    """One value for each pair, as they come. With the usual sizes a round takes about a minute on two cores."""
    engine = DictatedEngine(model, LlamaOptions(lanes=1, window_tokens=8192, threads=threads))
    with Vocabulary(model) as vocabulary:

        def chat(text: str) -> list[int]:
            whole = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            return vocabulary.encode(whole, is_template=True)

        lines = source_lines()
        edit = chat("Edit this file:\n" + "\n".join(lines))
        dictation = vocabulary.encode("\n".join(edited(lines)))
        stories = [chat(text) for text in PROSE]
    for _ in range(rounds):
        engine.dictation = ()
        for story in stories:
            engine.prepare(story)
            for _ in range(PROSE_QUADS if prose_tokens else 0):
                for plain, guessed in pairs(engine, story, prose_tokens):
                    yield "prose", "guessed_over_plain", ratio(plain, guessed)
                    yield "prose", "guessed_tokens", guessed.proposed
        engine.dictation = dictation
        if edit_tokens:
            yield from _edit(engine, edit, edit_tokens)
    engine.close()


def _edit(engine: DictatedEngine, prompt: Sequence[int], tokens: int) -> list[Measure]:
    """The bound is measured before and after every two pairs that are held against it."""
    timed: list[tuple[Timed, Timed]] = []
    engine.prepare(prompt)
    seconds = step_seconds(engine, prompt)
    for _ in range(EDIT_QUADS):
        timed += pairs(engine, prompt, tokens)
        for size, samples in step_seconds(engine, prompt).items():
            seconds[size] += samples
    size, bound = best_bound(seconds)
    measures: list[Measure] = [("edit", "bound", bound), ("edit", "bound_tokens", size)]
    for plain, guessed in timed:
        measures += [
            ("edit", "guessed_over_plain", ratio(plain, guessed)),
            ("edit", "share_of_bound", ratio(plain, guessed) / bound),
            ("edit", "tokens_per_step", (tokens - 1) / guessed.steps),
            ("edit", "accepted_share", guessed.accepted / max(1, guessed.proposed)),
            ("edit", "sampling_share", guessed.sampling_seconds / guessed.seconds),
            ("edit", "other_python_share", guessed.other_seconds / guessed.seconds),
        ]
    return measures


def ratio(plain: Timed, guessed: Timed) -> float:
    """How many times as fast tokens come with guesses."""
    return plain.seconds_per_token / guessed.seconds_per_token


def summary(measures: Sequence[Measure]) -> str:
    """A line for each row: median, lowest, highest, and every sample."""
    rows = dict.fromkeys((case, metric) for case, metric, _ in measures)
    lines = []
    for row in rows:
        values = [value for case, metric, value in measures if (case, metric) == row]
        samples = " ".join(f"{value:.3f}" for value in values)
        spread = f"{min(values):.3f} to {max(values):.3f}"
        lines.append(f"{row[0]:6}{row[1]:20}{statistics.median(values):.3f} ({spread}): {samples}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--edit-tokens", type=int, default=320, help="0 leaves the edit out")
    parser.add_argument("--prose-tokens", type=int, default=256, help="0 leaves prose out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    options = parser.parse_args()
    measures: list[Measure] = []
    for case, metric, value in measure(
        options.model,
        rounds=options.rounds,
        edit_tokens=options.edit_tokens,
        prose_tokens=options.prose_tokens,
        threads=options.threads,
    ):
        measures.append((case, metric, value))
        print(f"{case} {metric} {value:.3f}", file=sys.stderr, flush=True)
    print(json.dumps(measures) if options.json else summary(measures))


if __name__ == "__main__":
    main()
