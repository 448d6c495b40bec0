"""From samples to a table: medians with their spread, ratios made round by round, and the targets they must reach."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.samples import Sample
from benchmarks.settings import CONTENDERS, Contender


@dataclass(frozen=True)
class Target:
    """A bound on superfluid's median, or on its ratio to another contender's."""

    scenarios: tuple[str, ...]
    metric: str
    bound: float
    direction: Literal["at least", "at most"]
    relative_to: Contender | None = None
    case: str | None = None

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.direction == "at least" else value <= self.bound


_DECODE = ("decode-greedy", "decode-sampled")
TARGETS = (
    Target(_DECODE, "decode_tokens_per_second", 1.0, "at least", relative_to="llama-server"),
    Target(_DECODE, "decode_tokens_per_second", 0.95, "at least", relative_to="bare loop"),
    Target(("second-turn",), "ratio", 0.06, "at most"),
    Target(("shared-prefix",), "times", 1.2, "at most"),
    Target(("longest-gap",), "longest_gap_seconds", 0.6, "at most"),
    Target(("chat-behind-agents",), "first_token_seconds", 1 / 20, "at most", relative_to="llama-server"),
    Target(("chat-behind-agents",), "longest_gap_seconds", 0.6, "at most"),
    Target(("chat-behind-agents",), "ratio", 1.1, "at most"),
    Target(("herd",), "times", 1.1, "at most"),
    Target(("herd",), "first_token_seconds", 1 / 4, "at most", relative_to="llama-server"),
    Target(("returning",), "first_token_seconds", 1 / 5, "at most", relative_to="llama-server"),
    Target(("returning",), "warm_share", 1.0, "at least"),
    Target(("overcommit",), "seconds_until_all_ended", 1.0, "at most", relative_to="llama-server"),
    Target(("overcommit",), "finished_share", 1.0, "at least"),
    Target(("restart",), "ratio", 0.06, "at most"),
    Target(("speculation",), "share_of_bound", 0.8, "at least", case="edit"),
    Target(("speculation",), "guessed_over_plain", 0.97, "at least", case="prose"),
    Target(("daemon",), "cpu_seconds_per_1000_tokens", 0.25, "at most"),
    Target(("daemon",), "resident_megabytes", 150.0, "at most"),
)

Row = tuple[str, str, str]


def rows_of(samples: Iterable[Sample]) -> list[Row]:
    """The distinct (scenario, case, metric), in the order in which they were measured."""
    return list(dict.fromkeys((sample.scenario, sample.case, sample.metric) for sample in samples))


def values_of(samples: Iterable[Sample], row: Row, contender: Contender) -> dict[int, list[float]]:
    """The values of one row and contender by round."""
    found: dict[int, list[float]] = {}
    for sample in samples:
        if (sample.scenario, sample.case, sample.metric) == row and sample.contender == contender:
            found.setdefault(sample.round_index, []).append(sample.value)
    return found


def median_ratio(samples: Sequence[Sample], row: Row, below: Contender) -> float | None:
    """The median over rounds of superfluid's value over ``below``'s in the same round."""
    ours, theirs = values_of(samples, row, "superfluid"), values_of(samples, row, below)
    ratios = [
        statistics.median(ours[index]) / statistics.median(theirs[index]) for index in sorted(ours) if index in theirs
    ]
    return statistics.median(ratios) if ratios else None


def markdown(samples: Sequence[Sample]) -> str:
    """The whole table. A cell is ``median (lowest-highest)``; the last column compares with the targets."""
    contenders = [name for name in CONTENDERS if any(sample.contender == name for sample in samples)]
    lines = [
        "| " + " | ".join(["scenario", "case", "measure", *contenders, "targets"]) + " |",
        "|" + " --- |" * 3 + " ---: |" * len(contenders) + " --- |",
    ]
    for row in rows_of(samples):
        cells = [cell(flat(values_of(samples, row, name))) for name in contenders]
        lines.append("| " + " | ".join([*row, *cells, verdicts(samples, row)]) + " |")
    return "\n".join(lines)


def verdicts(samples: Sequence[Sample], row: Row) -> str:
    """What each target of this row asks and whether the run reached it."""
    return "; ".join(
        verdict
        for target in TARGETS
        if row[0] in target.scenarios
        and row[2] == target.metric
        and target.case in (None, row[1])
        and (verdict := verdict_of(target, samples, row))
    )


def verdict_of(target: Target, samples: Sequence[Sample], row: Row) -> str:
    """Empty if there is nothing to compare."""
    if target.relative_to is None:
        values = flat(values_of(samples, row, "superfluid"))
        value = statistics.median(values) if values else None
        label = ""
    else:
        value = median_ratio(samples, row, target.relative_to)
        label = f"{number(value)} of {target.relative_to}, " if value is not None else ""
    if value is None:
        return ""
    return f"{label}{target.direction} {number(target.bound)}: {'met' if target.is_met(value) else 'MISSED'}"


def flat(by_round: dict[int, list[float]]) -> list[float]:
    return [value for values in by_round.values() for value in values]


def cell(values: Sequence[float]) -> str:
    """``median (lowest-highest)``, one number if there is one, a dash if there is none."""
    if not values:
        return "-"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}-{number(max(values))})"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
