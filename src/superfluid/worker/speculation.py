"""Gets a loaded model ready for guessing ahead: its draft model, or why there is none. Runs in the worker."""

import logging
from pathlib import Path

import msgspec

from superfluid.domain.model import ModelFacts
from superfluid.domain.speculation import NO_SPECULATION, SpeculationRules
from superfluid.engine.interface import Engine
from superfluid.errors import UsageError
from superfluid.worker.draft_model import DraftModel
from superfluid.worker.engine_choice import load_draft_engine
from superfluid.worker.settings import EngineSettings

_logger = logging.getLogger("superfluid_daemon::engine")


def settled_rules(rules: SpeculationRules, facts: ModelFacts) -> SpeculationRules:
    """What the model allows of ``rules``: all, or nothing where its state cannot be cut. Says so to whoever asked for
    more than ``auto``."""
    if not rules.is_on or facts.can_truncate:
        return rules
    level = logging.INFO if rules.strategy == "auto" else logging.WARNING
    _logger.log(level, "nothing is guessed ahead: this model's state cannot be cut")
    return NO_SPECULATION


def warn_of_inexactness(settings: EngineSettings) -> None:
    """Whoever has asked for the exact mode is told that guesses are not part of its promise."""
    if settings.speculation.is_on and settings.flash_attention == "off":
        _logger.warning(
            "tokens are guessed ahead: what is the same bit for bit without flash attention may now differ in the last "
            "bits, and in a token that is nearly as likely; --speculate off keeps that promise"
        )


def settled_facts(facts: ModelFacts, rules: SpeculationRules) -> ModelFacts:
    """With the temperature that the model recommends brought down to ``rules.max_temperature``."""
    recommended = facts.sampling_defaults.temperature
    if not rules.is_on or rules.max_temperature is None or recommended is None:
        return facts
    lowered = msgspec.structs.replace(facts.sampling_defaults, temperature=min(recommended, rules.max_temperature))
    return msgspec.structs.replace(facts, sampling_defaults=lowered)


def open_draft_model(settings: EngineSettings, engine: Engine) -> DraftModel | None:
    """Loads the draft model, if there is to be one; it lives as long as the process.

    Raises UsageError if it has another vocabulary or cannot follow, ModelFileError, ModelLoadError.
    """
    path = settings.speculation.draft_model
    if path is None:
        return None
    draft = load_draft_engine(settings, engine, Path(path))
    if not draft.facts.can_truncate:
        draft.close()
        raise UsageError(f"the draft model {path} cannot take a wrong guess back: its state cannot be cut")
    return DraftModel(draft)
