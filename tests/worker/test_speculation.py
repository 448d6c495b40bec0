"""Guessing ahead on the fake engine, in the tick loop: the tokens of plain decoding, and what is told of it."""

import logging
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tests.fixtures.tick_loop import CostlyEngine, SteppedClock, SteppedLoop, cold_reply, make_job, make_settings, words

from superfluid.domain.job import Job
from superfluid.domain.request import SamplingOverrides, SamplingParams
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.fake import FakeEngine
from superfluid.engine.fake_script import FakeScript, ScriptedReply
from superfluid.engine.fake_vocabulary import encode_with_markers
from superfluid.errors import UsageError
from superfluid.worker.draft_model import DraftModel
from superfluid.worker.speculation import open_draft_model, settled_facts, settled_rules, warn_of_inexactness

_LOOKUP = SpeculationRules(strategy="prompt-lookup", has_gate=False, min_yield=0, is_adaptive=False)
_ADAPTIVE = msgspec.structs.replace(_LOOKUP, is_adaptive=True)
_DRAFTING = msgspec.structs.replace(_LOOKUP, strategy="draft-model")
_CHAT = encode_with_markers("<|im_start|>user\nSay it again.<|im_end|>\n<|im_start|>assistant\n")
_SAYING = FakeScript(replies=(ScriptedReply(text="one two three, " * 20),))


def _loop(rules: SpeculationRules, script: FakeScript | None = None, draft: FakeScript | None = None) -> SteppedLoop:
    drafts = DraftModel(FakeEngine(draft, lanes=4)) if rules.strategy == "draft-model" else None
    return SteppedLoop(script, make_settings(speculation=rules), draft_model=drafts)


def _job(**options: object) -> Job:
    return make_job(list(_CHAT), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [_LOOKUP, _ADAPTIVE, _DRAFTING], ids=["lookup", "adaptive", "model"])
def test_greedy_reply_is_that_of_plain_decoding_in_fewer_steps(rules: SpeculationRules) -> None:
    loop = _loop(rules, _SAYING, _SAYING)
    job = _job(max_tokens=500)
    received = loop.submit(job)
    loop.run()
    assert received.tokens == cold_reply(job, _SAYING)
    last = loop.records[-1]
    assert 0 < last.spec_accepted_total <= last.spec_proposed_total
    assert last.ticks_total < len(received.tokens) // 3


@pytest.mark.parametrize("rules", [_LOOKUP, _DRAFTING], ids=["lookup", "model"])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.0, seed=5),
        SamplingParams(temperature=0.7, top_k=5, seed=6),
        SamplingParams(temperature=1.5, top_p=0.9, seed=7),
        SamplingParams(temperature=0.8, repeat_penalty=1.3, presence_penalty=0.5, seed=8),
        SamplingParams(temperature=0, repeat_penalty=1.5, frequency_penalty=0.5),
    ],
    ids=["plain", "top-k", "top-p", "penalties", "greedy-penalties"],
)
def test_sampled_reply_is_that_of_plain_decoding(rules: SpeculationRules, sampling: SamplingParams) -> None:
    """Draws depend on the seed and the place, whatever was guessed there."""
    loop = _loop(rules)
    jobs = [make_job(words(seed, 30) * 3, max_tokens=120, sampling=sampling) for seed in range(3)]
    received = [loop.submit(job) for job in jobs]
    loop.run()
    assert [reply.tokens for reply in received] == [cold_reply(job) for job in jobs]
    assert loop.records[-1].spec_proposed_total > 0


def test_end_of_turn_that_was_guessed_ends_the_reply() -> None:
    """The conversation has the whole reply already, its end and what came then."""
    said = encode_with_markers("one two three.<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n")
    head = encode_with_markers("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    script = FakeScript(replies=(ScriptedReply(text="one two three."),))
    job = make_job([*head, *said, *head], max_tokens=100)
    loop = _loop(msgspec.structs.replace(_LOOKUP, is_adaptive=False, draft_tokens=15), script)
    received = loop.submit(job)
    loop.run()
    assert received.tokens == cold_reply(job, script)
    assert loop.records[-1].spec_accepted_total > 0


def test_cancel_while_guessing_leaves_a_lane_that_the_next_job_can_use() -> None:
    loop = _loop(_LOOKUP, _SAYING)
    first = _job(max_tokens=500)
    loop.submit(first)
    for _ in range(6):
        loop.tick()
    loop.cancel(first)
    again = _job(max_tokens=40)
    received = loop.submit(again)
    loop.run()
    assert received.tokens == cold_reply(again, _SAYING)


def test_fault_of_a_step_with_drafts_rejects_its_jobs_only() -> None:
    loop = _loop(_LOOKUP, msgspec.structs.replace(_SAYING, fault_steps=(5,)))
    lost = loop.submit(_job(max_tokens=500))
    loop.run()
    assert lost.rejection == "engine_fault"
    job = _job(max_tokens=60)
    received = loop.submit(job)
    loop.run()
    assert received.tokens == cold_reply(job, _SAYING)


def test_fault_of_the_draft_model_costs_only_its_guesses(caplog: pytest.LogCaptureFixture) -> None:
    loop = _loop(_DRAFTING, _SAYING, msgspec.structs.replace(_SAYING, fault_steps=tuple(range(1, 1000))))
    job = _job(max_tokens=100)
    received = loop.submit(job)
    loop.run()
    assert received.tokens == cold_reply(job, _SAYING)
    assert loop.records[-1].spec_proposed_total == 0
    assert "the draft model refused a step" in caplog.text


def test_draft_model_that_guesses_wrong_is_given_up() -> None:
    rules = SpeculationRules(strategy="draft-model", has_gate=False, yield_rounds=5)
    loop = _loop(rules, _SAYING, FakeScript(replies=(ScriptedReply(text="quite another thing " * 20),)))
    job = _job(max_tokens=200)
    received = loop.submit(job)
    loop.run()
    assert received.tokens == cold_reply(job, _SAYING)
    proposed = [record.spec_proposed_total for record in loop.records]
    assert proposed[-1] == proposed[len(proposed) // 2] > 0


def test_gate_on_measured_time_ends_guessing_that_does_not_pay() -> None:
    """The clock takes as long for a guessed token as for any other: no draft can be worth it."""
    loop = _loop(SpeculationRules(strategy="prompt-lookup"), _SAYING)
    received = loop.submit(_job(max_tokens=200))
    loop.run()
    assert len(received.tokens) == 200
    grants = [record.decode_grant_tokens for record in loop.records]
    assert sum(before > 1 for before, _ in pairwise(grants)) < 30


def test_settled_rules_are_off_where_the_state_cannot_be_cut(caplog: pytest.LogCaptureFixture) -> None:
    facts = FakeEngine(FakeScript(can_truncate=False), lanes=1).facts
    with caplog.at_level(logging.INFO):
        assert settled_rules(SpeculationRules(strategy="auto"), facts) == NO_SPECULATION
        assert settled_rules(_LOOKUP, facts) == NO_SPECULATION
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    assert settled_rules(_LOOKUP, FakeEngine(lanes=1).facts) == _LOOKUP


@pytest.mark.parametrize(
    ("recommended", "highest", "is_on", "temperature"),
    [
        (1.0, 0.5, True, 0.5),
        (0.3, 0.5, True, 0.3),
        (None, 0.5, True, None),
        (1.0, None, True, 1.0),
        (1.0, 0.5, False, 1.0),
    ],
)
def test_temperature_of_the_model_is_lowered_only_where_something_is_guessed(
    recommended: float | None, highest: float | None, is_on: bool, temperature: float | None
) -> None:
    script = FakeScript(sampling_defaults=SamplingOverrides(temperature=recommended, top_k=7))
    rules = SpeculationRules(strategy="auto" if is_on else "off", max_temperature=highest)
    defaults = settled_facts(FakeEngine(script, lanes=1).facts, rules).sampling_defaults
    assert (defaults.temperature, defaults.top_k) == (temperature, 7)


@pytest.mark.parametrize(
    ("rules", "flash", "is_warning"),
    [(_LOOKUP, "off", True), (_LOOKUP, "auto", False), (NO_SPECULATION, "off", False)],
)
def test_exact_mode_in_which_something_is_guessed_is_warned_of(
    rules: SpeculationRules, flash: Literal["off", "auto"], is_warning: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_inexactness(msgspec.structs.replace(make_settings(speculation=rules), flash_attention=flash))
    assert ("bit for bit" in caplog.text) == is_warning


def test_draft_model_whose_state_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "draft.json"
    path.write_text('{"can_truncate": false}')
    rules = SpeculationRules(strategy="draft-model", draft_model=str(path))
    with pytest.raises(UsageError, match="cannot be cut"):
        open_draft_model(make_settings(speculation=rules), FakeEngine(lanes=4))


def test_no_draft_model_is_loaded_unless_asked_for() -> None:
    assert open_draft_model(make_settings(speculation=_LOOKUP), CostlyEngine(lanes=4, clock=SteppedClock())) is None
