"""The memory flags: what they come to, and which are refused."""

from typing import Any

import pytest

from superfluid.cli.serve_settings import ServeFlags, build_serve_config
from superfluid.config import ModelConfig
from superfluid.domain.memory import MemoryRules
from superfluid.errors import UsageError


def _built(notes: list[str] | None = None, **flags: Any) -> ModelConfig:
    note = (notes if notes is not None else []).append
    return build_serve_config(ServeFlags(**flags), {"HOME": "/home/someone"}, cores=4, note=note).model


def test_rules_follow_the_flags() -> None:
    assert _built().memory == MemoryRules()
    rules = _built(pressure_high=100, pressure_low=0, pin_budget_pct=0, watches_os_pressure=False).memory
    assert rules == MemoryRules(
        pressure_high_percent=100, pressure_low_percent=0, pin_budget_percent=0, watches_system=False
    )


@pytest.mark.parametrize(("percent", "budget"), [(0, 0), (60, 60), (70, 70), (71, 70), (100, 70)])
def test_pin_budget_is_clamped_to_the_low_watermark_with_a_notice(percent: int, budget: int) -> None:
    notes: list[str] = []
    assert _built(notes, pin_budget_pct=percent).memory.pin_budget_percent == budget
    assert bool(notes) == (percent != budget)


@pytest.mark.parametrize(
    ("max_context", "tokens", "is_fitted"), [(None, None, False), ("auto", None, True), ("600", 600, False)]
)
def test_window_is_fitted_unless_it_is_a_number(max_context: str | None, tokens: int | None, is_fitted: bool) -> None:
    config = _built(max_context=max_context)
    assert (config.window_tokens, config.is_window_fitted) == (tokens, is_fitted)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"pressure_high": 0}, "--pressure-high"),
        ({"pressure_high": 101}, "--pressure-high"),
        ({"pressure_low": -1}, "--pressure-low"),
        ({"pressure_low": 85}, "--pressure-low"),
        ({"pressure_high": 60}, "--pressure-low"),
        ({"pin_budget_pct": -1}, "--pin-budget-pct"),
        ({"pin_budget_pct": 101}, "--pin-budget-pct"),
        ({"kv_bits": 16}, "--kv-bits"),
        ({"kv_bits": -8}, "--kv-bits"),
        ({"kv_bits": 8, "flash_attention": "off"}, "--kv-bits"),
    ],
)
def test_wrong_or_contradictory_flags_are_refused_by_name(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        _built(**flags)
    assert refused.value.param == name


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_kv_bits_reach_the_configuration(bits: int) -> None:
    assert _built(kv_bits=bits).kv_bits == bits
