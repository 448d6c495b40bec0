"""The monitor's screen, run headless: what it shows, its keys, its feed."""

import asyncio
import socket
from collections.abc import Callable

import msgspec
import pytest
from textual.pilot import Pilot

from superfluid.domain.request import QosClass
from superfluid.domain.statistics import DurationHistogram, EngineRates, LaneStatus, TickStatus
from superfluid.tui.monitor import HelpScreen, MonitorApp, main
from superfluid.tui.protocol import FrameReader, Hello, LogLine, Quit, Sample, decode_from_monitor, encode_frame
from superfluid.tui.state import MonitorState
from superfluid.worker.statistics import no_statistics

SIZES = [(80, 24), (200, 60), (40, 12)]
HELLO = Hello("tiny-model", "llama.cpp", "box", "http://127.0.0.1:8453", "listening", 8, 2048, 0.4)


def busy_sample(*, is_draining: bool = False) -> Sample:
    statistics = msgspec.structs.replace(
        no_statistics(),
        lanes_active=2,
        pool_blocks_used=24,
        pool_blocks_total=64,
        queue_depth=(0, 0, 3, 1),
        ticks_total=12_345,
        warm_prefix_tokens_total=300,
        prefill_tokens_total=100,
        first_token=DurationHistogram((0.1, 1.0), (1, 9, 0), 5.0),
        first_token_last_seconds=0.2,
        lanes=(
            LaneStatus(0, 5, "decode", QosClass.INTERACTIVE, 30, 31, 20, 16),
            LaneStatus(1, 6, "prefill", QosClass.AGENT, 400, 1600, 1600, 0),
            LaneStatus(2, held_tokens=700),
        ),
        tick=TickStatus(0.25, 64, 1, 0, 0),
        rates=EngineRates(80.0, 120.0),
    )
    return Sample(3661.0, statistics, [7, 8, 0], is_draining, 0)


def busy_state() -> MonitorState:
    state = MonitorState()
    state.take_hello(HELLO)
    state.take_sample(busy_sample())
    for number in range(50):
        state.take_log(LogLine("WARN" if number % 7 == 0 else "INFO", f"line {number}"))
    return state


def screen_text(app: MonitorApp) -> list[str]:
    """What a person sees, line by line."""
    width, height = app.size
    rows = [[" "] * width for _ in range(height)]
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        rows[y] = list(strip.text.ljust(width))[:width]
    return ["".join(row).rstrip() for row in rows]


async def shown(app: MonitorApp, pilot: "Pilot[None]") -> str:
    app.draw()
    await pilot.pause()
    return "\n".join(screen_text(app))


@pytest.mark.parametrize("size", SIZES)
async def test_screen_of_any_size_names_the_model_and_keeps_its_keys_in_sight(size: tuple[int, int]) -> None:
    app = MonitorApp(busy_state(), None)
    async with app.run_test(size=size) as pilot:
        text = await shown(app, pilot)
        assert all(len(line) <= size[0] for line in text.splitlines())
    assert "tiny-model" in text
    assert text.splitlines()[-1].startswith("q stop")


async def test_small_screen_shows_tick_lanes_pool_rates_queues_and_log() -> None:
    app = MonitorApp(busy_state(), None)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await shown(app, pilot)
    assert "up 1:01:01" in text
    assert "tick 250 ms  prefill 64 tokens on 1 lane" in text
    assert "2/8  25%" in text
    assert "24/64 blocks" in text
    assert "interactive    0 agent          3 " in text
    assert "p50" in text
    assert "reused  75% of prompt tokens" in text
    assert "   0         7  interactive  decode        20      11       30" in text
    assert "   1         8  agent        prefill     1600       0      400" in text
    assert "25%" in text
    assert "1 lane free, holding 700 tokens" in text
    assert "ticks 12,345" in text
    assert "line 49" in text


async def test_large_screen_has_charts() -> None:
    app = MonitorApp(busy_state(), None)
    async with app.run_test(size=(200, 60)) as pilot:
        text = await shown(app, pilot)
    assert "decode tok/s  now 0  peak 0" in text
    assert "KV pool %  now 38" in text


async def test_idle_rates_are_marked_as_the_last() -> None:
    state = busy_state()
    sample = busy_sample()
    state.take_sample(
        msgspec.structs.replace(sample, statistics=msgspec.structs.replace(sample.statistics, lanes_active=0))
    )
    app = MonitorApp(state, None)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await shown(app, pilot)
    assert "80.0 tok/s (last)" in text


async def test_log_is_scrolled_by_keys_and_says_where_it_is() -> None:
    app = MonitorApp(busy_state(), None)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(app, pilot)
        await pilot.press("up", "pageup")
        assert "11 lines back" in await shown(app, pilot)
        await pilot.press("g")
        assert "line 0" in await shown(app, pilot)
        await pilot.press("end")
        assert "log, following" in await shown(app, pilot)


async def test_pause_is_shown_and_taken_back() -> None:
    app = MonitorApp(busy_state(), None)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        assert "PAUSED" in await shown(app, pilot)
        await pilot.press("p")
        assert "PAUSED" not in await shown(app, pilot)


async def test_help_is_shown_until_a_key_is_pressed() -> None:
    app = MonitorApp(busy_state(), None)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("q")
        assert not isinstance(app.screen, HelpScreen)
        assert app.is_running


async def test_draining_server_says_so() -> None:
    state = busy_state()
    state.take_sample(busy_sample(is_draining=True))
    app = MonitorApp(state, None)
    async with app.run_test(size=(120, 24)) as pilot:
        assert "DRAINING, q again stops at once" in await shown(app, pilot)


async def wait_for(pilot: "Pilot[None]", condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError("it never happened")


async def test_feed_is_shown_and_its_end_ends_the_monitor() -> None:
    server, monitor = socket.socketpair()
    monitor.setblocking(False)
    app = MonitorApp(MonitorState(), monitor)
    with server, monitor:
        async with app.run_test(size=(80, 24)) as pilot:
            frames = encode_frame(HELLO) + encode_frame(busy_sample()) + encode_frame(LogLine("INFO", "hello there"))
            for byte in (frames[:10], frames[10:]):
                server.sendall(byte)
            await wait_for(pilot, lambda: app.state.sample is not None and len(app.state.log) == 2)
            assert "hello there" in await shown(app, pilot)
            server.shutdown(socket.SHUT_RDWR)
            await wait_for(pilot, lambda: not app.is_running)
    assert app.return_code == 0


@pytest.mark.parametrize("key", ["q", "escape", "ctrl+c"])
async def test_leaving_keys_ask_the_server_to_stop_each_time(key: str) -> None:
    server, monitor = socket.socketpair()
    monitor.setblocking(False)
    server.settimeout(60)
    app = MonitorApp(busy_state(), monitor)
    reader = FrameReader()
    with server, monitor:
        async with app.run_test(size=(80, 24)) as pilot:
            received: list[Quit] = []
            for _ in range(2):
                await pilot.press(key)
                data = await asyncio.to_thread(server.recv, 4096)
                received += [decode_from_monitor(payload) for payload in reader.feed(data)]
            assert received == [Quit(), Quit()]
            assert app.is_running
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("arguments", [[], ["x"], ["1", "2"]])
def test_monitor_that_is_run_by_hand_says_who_starts_it(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "superfluid serve" in capsys.readouterr().err
