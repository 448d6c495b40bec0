"""The table: medians, spread, ratios round by round, targets."""

from benchmarks.report import cell, markdown, median_ratio, number
from benchmarks.samples import Sample
from benchmarks.settings import Contender

ROW = ("decode-greedy", "8 clients", "decode_tokens_per_second")


def sample(contender: Contender, round_index: int, value: float, row: tuple[str, str, str] = ROW) -> Sample:
    return Sample(*row, contender, round_index, value)


def test_cell_shows_median_and_spread() -> None:
    assert cell([3.0, 1.0, 2.0]) == "2.00 (1.00-3.00)"
    assert cell([12.34]) == "12.3"
    assert cell([]) == "-"


def test_number_keeps_three_digits() -> None:
    assert [number(value) for value in (1234.5, 12.345, 1.2345, 0.12345)] == ["1234", "12.3", "1.23", "0.123"]


def test_median_ratio_is_made_within_each_round() -> None:
    samples = [
        *(sample("superfluid", index, value) for index, value in enumerate([10.0, 20.0, 30.0])),
        *(sample("llama-server", index, value) for index, value in enumerate([10.0, 10.0, 60.0])),
    ]
    assert median_ratio(samples, ROW, "llama-server") == 1.0


def test_median_ratio_without_the_other_contender_is_none() -> None:
    assert median_ratio([sample("superfluid", 0, 1.0)], ROW, "llama-server") is None


def test_table_says_which_targets_are_missed() -> None:
    samples = [sample("superfluid", 0, 90.0), sample("llama-server", 0, 80.0), sample("bare loop", 0, 100.0)]
    line = markdown(samples).splitlines()[-1]
    assert "of llama-server, at least 1.00: met" in line
    assert "0.900 of bare loop, at least 0.950: MISSED" in line


def test_table_holds_absolute_targets_against_the_median() -> None:
    row = ("longest-gap", "7 streams", "longest_gap_seconds")
    samples = [sample("superfluid", index, value, row) for index, value in enumerate([0.4, 0.5, 2.0])]
    assert "at most 0.600: met" in markdown(samples)


def test_target_of_one_case_is_not_for_the_others() -> None:
    samples = [
        sample("superfluid", 0, 1.5, ("speculation", "edit", "guessed_over_plain")),
        sample("superfluid", 0, 0.96, ("speculation", "prose", "guessed_over_plain")),
        sample("superfluid", 0, 0.81, ("speculation", "edit", "share_of_bound")),
    ]
    edit, prose, share = markdown(samples).splitlines()[-3:]
    assert "at least" not in edit
    assert "at least 0.970: MISSED" in prose
    assert "at least 0.800: met" in share
