"""The flags for guessing ahead: what they come to, with their variables, and which are refused."""

from typing import Any

import pytest

from superfluid.cli.serve_settings import ServeFlags, build_serve_config
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.errors import UsageError


def _built(variables: dict[str, str] | None = None, **flags: Any) -> SpeculationRules:
    environment = {"HOME": "/home/someone", **{f"SUPERFLUID_SPEC_{k}": v for k, v in (variables or {}).items()}}
    return build_serve_config(ServeFlags(**flags), environment, cores=4, note=lambda _: None).model.speculation


def test_nothing_is_guessed_unless_asked_for() -> None:
    assert _built() == NO_SPECULATION


@pytest.mark.parametrize(
    ("text", "strategy", "draft_model"),
    [
        ("off", "off", None),
        ("auto", "auto", None),
        ("prompt-lookup", "prompt-lookup", None),
        ("draft-model:small.gguf", "draft-model", "small.gguf"),
        ("draft-model:C:/a b.gguf", "draft-model", "C:/a b.gguf"),
    ],
)
def test_speculate_names_a_way_and_a_file(text: str, strategy: str, draft_model: str | None) -> None:
    rules = _built(speculate=text)
    assert (rules.strategy, rules.draft_model) == (strategy, draft_model)


@pytest.mark.parametrize("text", ["", "on", "Auto", "ngram", "draft-model", "draft-model:", "draft-model: ", "mtp"])
def test_speculate_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--speculate"):
        _built(speculate=text)


def test_flags_are_the_rules() -> None:
    rules = _built(
        speculate="auto",
        spec_draft_tokens=7,
        is_spec_adaptive=False,
        spec_max_temperature=0.5,
        spec_min_yield=0.0,
        spec_yield_rounds=1,
        has_spec_gate=False,
        spec_gate_probe_tokens=5,
        spec_min_speedup=1.0,
        spec_gate_reprobe=3,
        spec_gate_reprobe_max=3,
    )
    assert rules == SpeculationRules(
        strategy="auto",
        draft_tokens=7,
        is_adaptive=False,
        min_yield=0.0,
        yield_rounds=1,
        has_gate=False,
        gate_probe_tokens=5,
        min_speedup=1.0,
        reprobe_steps=3,
        reprobe_max_steps=3,
        max_temperature=0.5,
    )


_VARIABLES = {
    "ADAPTIVE": "0",
    "MIN_YIELD": "1.5",
    "LANE_YIELD_ROUNDS": "9",
    "GATE": "off",
    "GATE_PROBE": "8",
    "MIN_SPEEDUP": "1.2",
    "GATE_REPROBE": "4",
    "GATE_REPROBE_MAX": "64",
}


def test_variables_stand_for_flags_that_are_not_given() -> None:
    assert _built(_VARIABLES, speculate="auto") == SpeculationRules(
        strategy="auto",
        is_adaptive=False,
        min_yield=1.5,
        yield_rounds=9,
        has_gate=False,
        gate_probe_tokens=8,
        min_speedup=1.2,
        reprobe_steps=4,
        reprobe_max_steps=64,
    )


def test_flag_wins_over_its_variable_and_an_empty_variable_is_none() -> None:
    rules = _built(_VARIABLES | {"GATE": " "}, is_spec_adaptive=True, spec_min_yield=0.5)
    assert (rules.is_adaptive, rules.min_yield, rules.has_gate) == (True, 0.5, True)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("spec_draft_tokens", 0),
        ("spec_draft_tokens", 16),
        ("spec_max_temperature", -0.1),
        ("spec_max_temperature", 2.1),
        ("spec_max_temperature", float("nan")),
        ("spec_min_yield", -1.0),
        ("spec_min_yield", float("inf")),
        ("spec_yield_rounds", 0),
        ("spec_gate_probe_tokens", 0),
        ("spec_min_speedup", 0.99),
        ("spec_gate_reprobe", 0),
        ("spec_gate_reprobe_max", 0),
        ("spec_gate_reprobe_max", 31),
    ],
)
def test_value_out_of_range_is_refused_with_its_flag(flag: str, value: float) -> None:
    with pytest.raises(UsageError, match="--" + flag.replace("_", "-")):
        _built({}, **{flag: value})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ADAPTIVE", "perhaps"),
        ("GATE", "2"),
        ("MIN_YIELD", "much"),
        ("MIN_YIELD", "-1"),
        ("MIN_YIELD", "nan"),
        ("LANE_YIELD_ROUNDS", "1.5"),
        ("LANE_YIELD_ROUNDS", "0"),
        ("GATE_PROBE", "x"),
        ("MIN_SPEEDUP", "0.5"),
        ("GATE_REPROBE", "-1"),
        ("GATE_REPROBE_MAX", "31"),
    ],
)
def test_variable_that_makes_no_sense_is_refused(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"SUPERFLUID_SPEC_{variable}|--spec-gate-reprobe-max"):
        _built({variable: text})
