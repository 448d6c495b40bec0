from typing import NamedTuple

import pytest

from superfluid.sessions.counter import RunningFacts
from superfluid.telemetry.filter import parse_filter
from superfluid.telemetry.spans import FinishedSpan, SpanContext
from superfluid.telemetry.tracer import Tracer


class Ticked(NamedTuple):
    sequence: int
    started_unix: float
    wall_seconds: float
    queued: int
    jobs: list[int]


class Traced:
    """A tracer on a clock that goes on by one with every look at it."""

    def __init__(self, directive: str = "info,superfluid_daemon::scheduler=debug", store_ns: int = 5) -> None:
        self.spans: list[FinishedSpan] = []
        self._now = 0
        self.tracer = Tracer(
            self.spans.append,
            parse_filter(directive),
            model=lambda: "m",
            store_ns=store_ns,
            session_link=lambda session: SpanContext(session * 10, session),
            unix_ns=self._tick,
        )

    def _tick(self) -> int:
        self._now += 1
        return self._now


def test_generate_lasts_from_begin_to_end_and_links_to_its_session() -> None:
    traced = Traced()
    traced.tracer.began(1)
    traced.tracer.ended(1, RunningFacts(session=7, max_tokens=20))

    (span,) = traced.spans
    assert (span.name, span.target, span.parent, span.model) == ("generate", "superfluid_daemon", None, "m")
    assert (span.started_unix_ns, span.ended_unix_ns) == (1, 2)
    assert span.attributes == {"max_tokens": 20, "store_ns": 5, "session": 7}
    assert span.links == (SpanContext(70, 7),)


def test_generate_without_a_session_is_raw_and_links_to_nothing() -> None:
    traced = Traced()
    traced.tracer.began(1)
    traced.tracer.ended(1, RunningFacts(max_tokens=20))

    (span,) = traced.spans
    assert span.attributes == {"max_tokens": 20, "store_ns": 5, "raw": True}
    assert span.links == ()


def test_generate_where_nothing_is_stored_links_to_nothing() -> None:
    traced = Traced(store_ns=0)
    traced.tracer.began(1)
    traced.tracer.ended(1, RunningFacts(session=7))
    assert traced.spans[0].links == ()


def test_every_generate_has_a_trace_of_its_own() -> None:
    traced = Traced()
    for reply in range(50):
        traced.tracer.began(reply)
        traced.tracer.ended(reply, RunningFacts())
    assert len({span.context.trace_id for span in traced.spans}) == 50
    assert all(span.context.trace_id and span.context.span_id for span in traced.spans)


def test_tick_links_to_the_replies_it_worked_for_those_that_just_ended_included() -> None:
    traced = Traced()
    traced.tracer.began(1)
    traced.tracer.began(2)
    traced.tracer.ended(1, RunningFacts())
    traced.tracer.ticked([Ticked(9, 100.0, 0.5, 3, [1, 2, 99])])
    traced.tracer.ended(2, RunningFacts())

    first, tick, second = traced.spans
    assert (tick.name, tick.target) == ("tick", "superfluid_daemon::scheduler")
    assert (tick.started_unix_ns, tick.ended_unix_ns) == (100_000_000_000, 100_500_000_000)
    assert tick.attributes == {"queued": 3, "store_ns": 5, "lanes": 3, "tick_seq": 9}
    assert tick.links == (first.context, second.context)


@pytest.mark.parametrize(
    ("directive", "names"),
    [
        ("info,superfluid_daemon::scheduler=debug", ["tick", "generate"]),
        ("info", ["generate"]),
        ("debug", ["tick", "generate"]),
        ("superfluid_daemon::scheduler=debug", ["tick"]),
        ("warn", []),
        ("off", []),
    ],
)
def test_filter_decides_which_spans_there_are(directive: str, names: list[str]) -> None:
    traced = Traced(directive)
    traced.tracer.began(1)
    traced.tracer.ticked([Ticked(1, 1.0, 0.1, 0, [1])])
    traced.tracer.ended(1, RunningFacts())
    assert [span.name for span in traced.spans] == names
    assert traced.tracer.wants_ticks or "tick" not in names


class Moved(NamedTuple):
    kind: str
    started_unix: float
    wall_seconds: float
    session: int
    covered: int
    size_bytes: int
    tick: int = 0


def test_park_stands_alone_and_links_to_its_session() -> None:
    traced = Traced()
    traced.tracer.moved(Moved("park", 100.0, 0.25, 7, 900, 12_345))

    (span,) = traced.spans
    assert (span.name, span.target, span.parent) == ("park", "superfluid_daemon::scheduler", None)
    assert (span.started_unix_ns, span.ended_unix_ns) == (100_000_000_000, 100_250_000_000)
    assert span.attributes == {"session": 7, "store_ns": 5, "covered": 900, "lossy": False}
    assert span.links == (SpanContext(70, 7),)


def test_restore_is_a_child_of_its_tick_although_that_is_told_later() -> None:
    traced = Traced()
    traced.tracer.moved(Moved("restore", 100.0, 0.25, 7, 900, 12_345, 9))
    traced.tracer.ticked([Ticked(9, 100.0, 0.5, 0, [1]), Ticked(10, 100.5, 0.5, 0, [1])])

    restore, tick, later = traced.spans
    assert restore.parent == tick.context
    assert restore.context.trace_id == tick.context.trace_id != later.context.trace_id
    assert restore.attributes == {"session": 7, "store_ns": 5, "covered": 900, "bytes": 12_345, "encoding": 0}
    assert restore.links == ()


def test_restore_without_ticks_stands_alone() -> None:
    traced = Traced("info")
    traced.tracer.moved(Moved("restore", 100.0, 0.25, 7, 900, 12_345, 9))
    assert traced.spans[0].parent is None
    assert traced.spans[0].links == (SpanContext(70, 7),)


def test_state_of_no_session_links_to_nothing() -> None:
    traced = Traced()
    traced.tracer.moved(Moved("park", 100.0, 0.25, 0, 900, 12_345))
    assert traced.spans[0].links == ()
