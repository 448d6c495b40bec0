"""The scheduling flags: what they come to, and which are refused."""

from typing import Any

import pytest

from superfluid.cli.serve_settings import ServeFlags, build_serve_config
from superfluid.config import HttpQosConfig, ServeConfig
from superfluid.domain.request import QosClass
from superfluid.domain.scheduling import SchedulingRules
from superfluid.errors import UsageError


def _built(notes: list[str] | None = None, **flags: Any) -> ServeConfig:
    note = (notes if notes is not None else []).append
    return build_serve_config(ServeFlags(**flags), {"HOME": "/home/someone"}, cores=4, note=note)


def test_rules_follow_the_flags() -> None:
    config = _built(
        tick_target_ms=100, starvation_ticks=3, class_lanes="background=1, Agent=4", tick_decode_budget=6
    ).model.scheduling
    assert config == SchedulingRules(
        tick_target_seconds=0.1, starvation_ticks=3, class_lanes=(None, None, 4, 1), decode_budget_tokens=6
    )


@pytest.mark.parametrize(("tokens", "clamped"), [(0, 0), (1, 64), (64, 64), (512, 512), (4096, 4096), (5000, 4096)])
def test_prefill_budget_is_clamped_with_a_notice(tokens: int, clamped: int) -> None:
    notes: list[str] = []
    assert _built(notes, prefill_budget=tokens).model.scheduling.prefill_budget_tokens == clamped
    assert bool(notes) == (tokens != clamped)


def test_http_requests_get_the_class_and_the_rights_that_the_flags_give() -> None:
    qos = _built(http_default_qos="Inline_Completion", allows_batch_invariant=True).http.qos
    assert qos == HttpQosConfig(default=QosClass.COMPLETION, allows_batch_invariant=True)
    assert _built(has_no_qos_header=True).http.qos == HttpQosConfig(has_headers=False)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"starvation_ticks": 0}, "--starvation-ticks"),
        ({"prefill_budget": -1}, "--prefill-budget"),
        ({"tick_decode_budget": -1}, "--tick-decode-budget"),
        ({"tick_target_ms": 0.5}, "--tick-target-ms"),
        ({"tick_target_ms": float("nan")}, "--tick-target-ms"),
        ({"http_default_qos": "urgent"}, "--http-default-qos"),
        ({"has_no_qos_header": True, "allows_batch_invariant": True}, "--no-http-qos-header"),
        ({"class_lanes": ""}, "--class-lanes"),
        ({"class_lanes": "agent"}, "--class-lanes"),
        ({"class_lanes": "agent=x"}, "--class-lanes"),
        ({"class_lanes": "agent=0"}, "--class-lanes"),
        ({"class_lanes": "agent=9"}, "--class-lanes"),
        ({"class_lanes": "agent=3", "max_batch": 2}, "--class-lanes"),
        ({"class_lanes": "urgent=1"}, "--class-lanes"),
        ({"class_lanes": "agent=1,foreground=2"}, "--class-lanes"),
        ({"class_lanes": "agent=1,"}, "--class-lanes"),
    ],
)
def test_flags_that_contradict_are_refused_by_name(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError) as refused:
        _built(**flags)
    assert refused.value.param == name
    assert name in refused.value.message
