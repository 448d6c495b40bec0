"""What a worker is told, and what a failed load says of the files beside the model."""

import pytest

from superfluid import engine_settings
from superfluid.domain.speculation import SpeculationRules
from superfluid.engine_settings import load_hint
from superfluid.worker.settings import EngineSettings


def test_hint_of_a_failed_load_names_the_files_beside_the_model_that_the_message_does_not() -> None:
    settings = EngineSettings(
        engine="llamacpp",
        model="m.gguf",
        lanes=1,
        window_tokens=None,
        max_queue=1,
        projector="p.gguf",
        speculation=SpeculationRules(strategy="draft-model", draft_model="d.gguf"),
    )
    hint = load_hint(settings, "died of SIGABRT")
    assert "the projector p.gguf, --mmproj none" in hint
    assert "the draft model d.gguf, --speculate off" in hint
    assert "d.gguf" not in load_hint(settings, "the draft model d.gguf is damaged")
    plain = EngineSettings(engine="llamacpp", model="m.gguf", lanes=1, window_tokens=None, max_queue=1)
    assert load_hint(plain, "died of SIGABRT") == ""


def test_automatic_host_cache_is_a_share_of_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_settings, "available_memory_bytes", lambda: 1_000_000)
    assert engine_settings.automatic_host_cache_bytes() == 400_000
    monkeypatch.setattr(engine_settings, "available_memory_bytes", lambda: 10**15)
    assert engine_settings.automatic_host_cache_bytes() == 8 << 30
    monkeypatch.setattr(engine_settings, "available_memory_bytes", lambda: None)
    assert engine_settings.automatic_host_cache_bytes() > 0
