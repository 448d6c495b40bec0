"""What a client may want to know of the served model before it asks for anything, as gauges of the metrics page."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from superfluid.domain.request import SamplingOverrides
from superfluid.sessions.interface import ServedModel


class ModelCollector(Collector):
    """``served`` gives the default model, ``None`` if none is known yet. A model that is loading says nothing."""

    def __init__(self, served: Callable[[], ServedModel | None]) -> None:
        self._served = served

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        model = self._served()
        if model is None or not model.is_ready:
            return
        info = GaugeMetricFamily(
            "superfluid_model_info", "Always 1; names the model and what computes it.", labels=["model", "engine"]
        )
        info.add_metric([model.model_id, model.facts.engine], 1)
        yield info
        yield GaugeMetricFamily(
            "superfluid_context_tokens", "The context window of a lane.", value=model.facts.window_tokens
        )
        yield _default_sampling(model.sampling_defaults)


def _default_sampling(sampling: SamplingOverrides) -> Metric:
    """Only what the operator or the model names: a client of the session API must fill in the rest itself."""
    family = GaugeMetricFamily(
        "superfluid_default_sampling",
        "Sampling parameters that the operator's flags, or else the model, recommend.",
        labels=["parameter"],
    )
    for name in ("temperature", "top_p", "top_k", "min_p"):
        value = getattr(sampling, name)
        if value is not None:
            family.add_metric([name], value)
    return family
