"""The metrics of a model of its own that fills in the middle. Pure but for the reading; used in the daemon."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from superfluid.domain.statistics import ModelStatistics

_PREFIX = "superfluid_fim_satellite_"


class SatelliteCollector(Collector):
    """Nothing where the served model fills in by itself."""

    def __init__(self, read: Callable[[], tuple[str, ModelStatistics] | None]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read statistics that are not there yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        if (read := self._read()) is None:
            return
        model, statistics = read
        name = GaugeMetricFamily(
            f"{_PREFIX}info", "Always 1; names the model that fills in the middle.", labels=["model"]
        )
        name.add_metric([model], 1)
        yield name
        yield CounterMetricFamily(
            f"{_PREFIX}decode_tokens", "Tokens that it has drawn.", value=statistics.decode_tokens_total
        )
        for series, text, value in (
            ("lanes_active", "Its lanes that have a job.", statistics.lanes_active),
            ("pool_blocks_used", "Blocks of its KV cache that hold tokens.", statistics.pool_blocks_used),
            ("pool_blocks_total", "Blocks of its KV cache.", statistics.pool_blocks_total),
        ):
            yield GaugeMetricFamily(_PREFIX + series, text, value=value)
