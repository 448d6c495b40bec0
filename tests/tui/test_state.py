import msgspec
import pytest

from superfluid.domain.statistics import DurationHistogram
from superfluid.tui.protocol import Hello, LogLine, Sample
from superfluid.tui.state import LOG_LINES, MonitorState, quantile, share
from superfluid.worker.statistics import no_statistics


def sample(at: float, decoded: int = 0, prefilled: int = 0, *, is_draining: bool = False) -> Sample:
    statistics = msgspec.structs.replace(
        no_statistics(),
        decode_tokens_total=decoded,
        prefill_tokens_total=prefilled,
        pool_blocks_used=1,
        pool_blocks_total=4,
    )
    return Sample(at, statistics, [], is_draining, 0)


def test_rates_are_over_the_last_second() -> None:
    state = MonitorState()
    for at, decoded, prefilled in ((0.0, 0, 0), (0.25, 10, 100), (0.5, 20, 200), (1.0, 40, 400), (2.0, 90, 400)):
        state.take_sample(sample(at, decoded, prefilled))
    assert list(state.decode_history) == [0.0, 40.0, 40.0, 40.0, 50.0]
    assert list(state.prefill_history)[-1] == 0.0
    assert (state.decode_peak, state.prefill_peak) == (50.0, 400.0)
    assert list(state.pool_history) == [0.25] * 5


def test_rates_after_a_counter_that_fell_are_not_negative() -> None:
    state = MonitorState()
    state.take_sample(sample(0.0, 100))
    state.take_sample(sample(1.0, 5))
    assert state.decode_history[-1] == 0.0


def test_paused_numbers_stand_still_but_time_and_draining_go_on() -> None:
    state = MonitorState()
    state.take_sample(sample(0.0, 10))
    state.is_paused = True
    state.take_sample(sample(5.0, 99, is_draining=True))
    assert state.sample is not None
    assert state.sample.statistics.decode_tokens_total == 10
    assert (state.sample.uptime_seconds, state.sample.is_draining) == (5.0, True)
    assert len(state.decode_history) == 1


def lines(state: MonitorState, height: int) -> list[str]:
    return [line.text for line in state.visible_log(height)]


def logged(count: int) -> MonitorState:
    state = MonitorState()
    for number in range(count):
        state.take_log(LogLine("INFO", str(number)))
    return state


def test_log_follows_its_end() -> None:
    state = logged(5)
    assert lines(state, 3) == ["2", "3", "4"]
    state.take_log(LogLine("INFO", "5"))
    assert lines(state, 3) == ["3", "4", "5"]


def test_log_that_is_scrolled_back_stays_where_it_is() -> None:
    state = logged(10)
    state.scroll(4, 3)
    assert lines(state, 3) == ["3", "4", "5"]
    state.take_log(LogLine("INFO", "10"))
    assert lines(state, 3) == ["3", "4", "5"]


@pytest.mark.parametrize(("by", "shown"), [(1000, ["0", "1", "2"]), (-1000, ["7", "8", "9"])])
def test_log_scrolls_no_further_than_its_ends(by: int, shown: list[str]) -> None:
    state = logged(10)
    state.scroll(2, 3)
    state.scroll(by, 3)
    assert lines(state, 3) == shown


def test_log_keeps_a_bounded_number_of_lines() -> None:
    state = logged(LOG_LINES + 10)
    assert lines(state, LOG_LINES + 100)[0] == "10"
    state.scroll(10**6, 3)
    state.take_log(LogLine("INFO", "new"))
    assert lines(state, 3)


def test_banner_begins_the_log() -> None:
    state = MonitorState()
    state.take_hello(Hello("m", "e", "n", "u", "\n  listening on u\n\n  Try it:\n", 1, 1, 0.4))
    assert lines(state, 9) == ["listening on u", "Try it:"]


@pytest.mark.parametrize(
    ("counts", "q", "seconds"),
    [((0, 0, 0), 0.5, None), ((4, 0, 0), 0.5, 0.05), ((2, 2, 0), 0.75, 0.55), ((0, 0, 3), 0.5, 1.0)],
)
def test_quantile_interpolates_within_its_bucket(counts: tuple[int, ...], q: float, seconds: float | None) -> None:
    found = quantile(DurationHistogram((0.1, 1.0), counts, 0.0), q)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_share_of_nothing_is_not_known() -> None:
    assert share(0, 0) is None
    assert share(1, 3) == 0.25
