"""What a worker is told, and what a failed load says of the files beside the model."""

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
