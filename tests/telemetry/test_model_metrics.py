from prometheus_client import CollectorRegistry
from tests.fixtures.scripted_models import ScriptedModel

from superfluid.cli.chat.sampling import ServerFacts, read_facts
from superfluid.domain.request import SamplingOverrides
from superfluid.telemetry.metrics import render
from superfluid.telemetry.model_metrics import ModelCollector


def page(model: ScriptedModel | None) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ModelCollector(lambda: model))
    return render(registry).decode()


def test_loaded_model_tells_its_name_its_window_and_what_it_recommends() -> None:
    model = ScriptedModel(model_id='odd "name"')
    model.sampling_defaults = SamplingOverrides(temperature=0.6, top_k=20)
    samples = [line for line in page(model).splitlines() if not line.startswith("#")]
    assert samples == [
        'superfluid_model_info{model="odd \\"name\\"",engine="scripted"} 1',
        "superfluid_context_tokens 2048",
        'superfluid_default_sampling{parameter="temperature"} 0.6',
        'superfluid_default_sampling{parameter="top_k"} 20',
    ]


def test_what_a_model_tells_is_what_the_chat_reads() -> None:
    model = ScriptedModel(model_id='odd "name"')
    model.sampling_defaults = SamplingOverrides(temperature=0.6, top_k=20)
    assert read_facts(page(model)) == ServerFacts('odd "name"', 2048, {"temperature": 0.6, "top_k": 20.0})


def test_model_that_is_loading_or_not_known_tells_nothing() -> None:
    assert page(ScriptedModel(is_ready=False)).strip() == ""
    assert page(None).strip() == ""
