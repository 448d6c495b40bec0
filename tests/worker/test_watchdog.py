"""The wedge rule, with numbers for times."""

from superfluid.worker.watchdog import IMAGE_SECONDS, Watchdog


def run(watchdog: Watchdog, start: float, seconds: float, *, is_busy: bool) -> list[tuple[float, str]]:
    """Checks as often as the watchdog asks for; the verdicts that are not ``fine``, with their times."""
    verdicts: list[tuple[float, str]] = []
    now = start
    while now < start + seconds:
        now += watchdog.check_seconds
        verdict = watchdog.check(now, is_busy=is_busy)
        if verdict != "fine":
            verdicts.append((now, verdict))
        if verdict == "wedged":
            break
    return verdicts


def watchdog_with_ticks(*walls: float) -> Watchdog:
    watchdog = Watchdog(10.0)
    watchdog.restart(0.0)
    for wall in walls:
        watchdog.ticked(wall)
    return watchdog


def test_watchdog_busy_and_silent_is_wedged_within_timeout_and_two_checks() -> None:
    *_, (when, verdict) = run(watchdog_with_ticks(0.1), 0.0, 100.0, is_busy=True)
    assert verdict == "wedged"
    assert 10.0 < when <= 14.0


def test_watchdog_idle_and_silent_is_wedged_after_a_ping() -> None:
    (pinged, first), *_, (when, verdict) = run(watchdog_with_ticks(0.1), 0.0, 100.0, is_busy=False)
    assert (first, pinged) == ("ping", 10.0)
    assert (verdict, when) == ("wedged", 22.0)


def test_watchdog_that_hears_answers_never_bites() -> None:
    watchdog = watchdog_with_ticks(0.1)
    for second in range(0, 200, 2):
        assert watchdog.check(float(second), is_busy=True) != "wedged"
        watchdog.heard()


def test_watchdog_busy_pings_every_two_seconds_and_idle_every_ten() -> None:
    busy = watchdog_with_ticks(0.1)
    idle = watchdog_with_ticks(0.1)
    for watchdog, is_busy, expected in ((busy, True, 10), (idle, False, 2)):
        pings = 0
        for second in range(2, 21, 2):
            pings += watchdog.check(float(second), is_busy=is_busy) == "ping"
            watchdog.heard()
        assert pings == expected


def test_patience_is_eight_slowest_recent_ticks_if_that_is_more() -> None:
    assert watchdog_with_ticks(0.1, 0.2).patience_seconds(is_busy=True) == 10.0
    assert watchdog_with_ticks(0.1, 3.0).patience_seconds(is_busy=True) == 24.0
    assert watchdog_with_ticks(3.0, *[0.1] * 64).patience_seconds(is_busy=True) == 10.0


def test_patience_before_the_first_tick_is_longer_when_busy() -> None:
    watchdog = watchdog_with_ticks()
    assert watchdog.patience_seconds(is_busy=True) == 60.0
    assert watchdog.patience_seconds(is_busy=False) == 10.0


def test_watchdog_after_the_daemon_stood_still_starts_counting_anew() -> None:
    watchdog = watchdog_with_ticks(0.1)
    assert watchdog.check(2.0, is_busy=True) == "ping"
    assert watchdog.check(3600.0, is_busy=True) == "ping"
    assert watchdog.check(3602.0, is_busy=True) == "ping"


def test_watchdog_restart_forgets_the_old_workers_silence() -> None:
    watchdog = watchdog_with_ticks(0.1)
    assert watchdog.check(2.0, is_busy=True) == "ping"
    watchdog.restart(11.0)
    assert watchdog.check(13.0, is_busy=True) == "ping"
    assert watchdog.check(15.0, is_busy=True) == "ping"


def test_watchdog_is_patient_while_an_image_is_worked_on_and_no_longer() -> None:
    watchdog = watchdog_with_ticks(0.1)
    watchdog.image_begun()
    *_, (when, verdict) = run(watchdog, 0.0, 2000.0, is_busy=True)
    assert verdict == "wedged"
    assert IMAGE_SECONDS < when <= IMAGE_SECONDS + 4.0
    for end in (watchdog.heard, lambda: watchdog.ticked(0.1), lambda: watchdog.restart(0.0)):
        watchdog.image_begun()
        end()
        assert watchdog.patience_seconds(is_busy=True) == 10.0
