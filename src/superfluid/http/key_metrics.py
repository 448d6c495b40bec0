"""The rows of the metrics page about the policy's keys. Pure; runs in the daemon.

Apart from the other families because who asks decides which of them are shown.
"""

from collections.abc import Iterator, Sequence

from superfluid.domain.statistics import KeyStatistics

_PREFIX = "superfluid_key_"


def key_rows(keys: Sequence[KeyStatistics]) -> bytes:
    """Prometheus text, nothing for no keys. Names of keys need no escaping: see ``config.PolicyKey``."""
    return "".join(f"{line}\n" for line in _lines(keys)).encode() if keys else b""


def _lines(keys: Sequence[KeyStatistics]) -> Iterator[str]:
    yield from _head("requests_total", "counter", "Requests of a key of the policy, refused ones included.")
    for key in keys:
        yield f'{_PREFIX}requests_total{{key="{key.name}"}} {key.requests_total}'
    yield from _head("rejected_total", "counter", "Requests that the policy refused, by reason.")
    for key in keys:
        for reason, count in key.rejected.items():
            yield f'{_PREFIX}rejected_total{{key="{key.name}",reason="{reason}"}} {count}'
    yield from _head("in_flight", "gauge", "Slots that a key holds; 0 for one without max_concurrent.")
    for key in keys:
        yield f'{_PREFIX}in_flight{{key="{key.name}"}} {key.in_flight}'


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
