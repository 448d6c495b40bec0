"""What guessing ahead is worth: the bound n*t(1)/t(n), a dictated edit of a 300-line file, and free prose.

Run ``PYTHONPATH=src python -m benchmarks.micro.speculation MODEL.gguf [edit tokens]`` on a quiet machine: one lane,
two threads, no server.
A small model cannot copy a file, so the edit is dictated: the real engine computes each step, and then its logits say
the next token of the edited file. Prose is what the model says itself. Every pair is plain first, then guessed, on a
scheduler that has learned nothing yet.
"""

import random
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.prompts import Vocabulary
from superfluid.clock import SystemClock
from superfluid.domain.job import Job
from superfluid.domain.request import SamplingParams
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.interface import Row, StepResult
from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.worker.inbox import Inbox
from superfluid.worker.loop import TickLoop
from superfluid.worker.protocol import FromWorker, Submit, Tick
from superfluid.worker.settings import EngineSettings

LINES = 300
BOUND_SIZES = (1, 2, 3, 5, 9, 16)
PROSE = ("Write a short story about a lighthouse.", "Explain how rainbows form.", "Describe a baker's day.")

_ids = count(1)


class DictatedEngine(LlamaEngine):
    """With a ``dictation``, what it says from position ``begin`` on is that."""

    dictation: Sequence[int] = ()
    begin = 0

    def step(self, rows: Sequence[Row]) -> StepResult:
        result = super().step(rows)
        index = 0
        for row in rows:
            if row.wants_logits == "none":
                continue
            end = row.position + len(row.tokens)
            for position in range(row.position + 1 if row.wants_logits == "all" else end, end + 1):
                if 0 <= position - self.begin < len(self.dictation):
                    result.logits[index][self.dictation[position - self.begin]] = 1000.0
                index += 1
        return result


def decode_seconds_per_token(engine: LlamaEngine, rules: SpeculationRules, prompt: list[int], tokens: int) -> float:
    """From the first token to the last, greedy."""
    settings = EngineSettings(engine="llamacpp", model="", lanes=1, window_tokens=None, max_queue=1, speculation=rules)
    told: list[int] = []

    def take(message: FromWorker) -> None:
        if isinstance(message, Tick):
            told.append(sum(len(output.tokens) // 4 for output in message.outputs))

    loop = TickLoop(engine, settings, Inbox(), take, clock=SystemClock())
    packed = np.array(prompt, "<i4").tobytes()
    sampling = SamplingParams(temperature=0)
    job = Job(
        job_id=next(_ids),
        tokens=packed,
        prompt_tokens=len(prompt),
        max_tokens=tokens,
        sampling=sampling,
        ignore_eos=True,
    )
    loop.take(Submit(job))
    while not sum(told):
        loop.tick()
    begun, first = time.perf_counter(), sum(told)
    while loop.tick():
        pass
    seconds = time.perf_counter() - begun
    engine.clear(0)
    return seconds / (sum(told) - first)


def bound(engine: LlamaEngine, prompt: list[int]) -> dict[int, float]:
    """How many times as fast n tokens come in one step as one by one, behind ``prompt``."""
    tokens = np.array(prompt, np.int32)
    engine.step([Row(0, 0, tokens, "none")])
    seconds: dict[int, list[float]] = {size: [] for size in BOUND_SIZES}
    for _ in range(8):
        for size, samples in seconds.items():
            begun = time.perf_counter()
            engine.step([Row(0, len(tokens), tokens[:size], "all")])
            samples.append(time.perf_counter() - begun)
            engine.truncate(0, len(tokens))
    engine.clear(0)
    medians = {size: statistics.median(samples) for size, samples in seconds.items()}
    return {size: size * medians[1] / median for size, median in medians.items()}


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


def main(model: Path, edit_tokens: int) -> None:
    engine = DictatedEngine(model, LlamaOptions(lanes=1, window_tokens=8192, threads=2))
    guessing = SpeculationRules(strategy="prompt-lookup")

    def ratio(prompt: list[int], tokens: int) -> float:
        plain = decode_seconds_per_token(engine, NO_SPECULATION, prompt, tokens)
        return plain / decode_seconds_per_token(engine, guessing, prompt, tokens)

    def chat(text: str) -> list[int]:
        whole = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return vocabulary.encode(whole, is_template=True)

    with Vocabulary(model) as vocabulary:
        lines = source_lines()
        prompt = chat("Edit this file:\n" + "\n".join(lines))
        prose = [ratio(chat(text), 256) for text in PROSE]
        print("prose, guessed over plain:", ", ".join(f"{value:.2f}" for value in prose))
        limits = bound(engine, prompt)
        print("bound:", ", ".join(f"{size} tokens {limit:.2f}" for size, limit in limits.items()))
        engine.dictation, engine.begin = vocabulary.encode("\n".join(edited(lines))), len(prompt)
        speedup = ratio(prompt, min(edit_tokens, len(engine.dictation)))
        print(f"edit, guessed over plain: {speedup:.2f}, {speedup / max(limits.values()):.2f} of the best bound")
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
