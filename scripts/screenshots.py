"""Draws the pictures of the terminal monitors for the documentation, from made-up numbers: docs/images/*.svg.

python scripts/screenshots.py docs/images
"""

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
from textual.app import App

from superfluid.domain.request import QosClass
from superfluid.domain.statistics import DurationHistogram, EngineRates, LaneStatus, TickStatus
from superfluid.tui.fleet import Answer, Fleet
from superfluid.tui.monitor import MonitorApp
from superfluid.tui.protocol import Hello, LogLine, Sample
from superfluid.tui.state import MonitorState
from superfluid.tui.top import TopApp
from superfluid.worker.statistics import no_statistics

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
LOG = (
    ("INFO", "the session store is open sessions_made=41"),
    ("INFO", "the model is loaded model=SmolLM2-135M-Instruct.Q4_1 seconds=0.6"),
    ("INFO", "<-- 200 POST /v1/chat/completions model=SmolLM2-135M-Instruct.Q4_1 prompt=812 cached=640 finish=stop"),
    ("INFO", "a lane was preempted session=38 lane=5 class=3 produced=112"),
    ("WARN", "spans are not getting through to the collector: All connection attempts failed"),
    ("INFO", "spans are getting through to the collector again"),
)


def monitor_state() -> MonitorState:
    state = MonitorState()
    state.take_hello(
        Hello("SmolLM2-135M-Instruct.Q4_1", "llama.cpp", "workbench", "http://127.0.0.1:8453", "", 8, 8192, 0.4)
    )
    decoded, prefilled = 180_000.0, 90_000.0
    for second in range(120):
        decoded += 60 + 25 * math.sin(second / 9) + 8 * math.sin(second * 2.1)
        prefilled += max(0.0, 70 * math.sin(second / 7))
        state.take_sample(monitor_sample(float(second + 4000), int(decoded), int(prefilled), 60 + second // 3))
    for level, text in LOG:
        state.take_log(LogLine(level, text))
    return state


def monitor_sample(at: float, decoded: int, prefilled: int, blocks: int) -> Sample:
    statistics = msgspec.structs.replace(
        no_statistics(),
        lanes_active=5,
        pool_blocks_used=blocks,
        pool_blocks_total=256,
        queue_depth=(0, 0, 2, 6),
        ticks_total=48_213,
        decode_tokens_total=decoded,
        prefill_tokens_total=prefilled,
        warm_prefix_tokens_total=412_000,
        cold_admissions_total=23,
        host_saves_total=61,
        host_restores_total=44,
        prefill_budget_tokens=48,
        tick_wall_seconds=0.071,
        first_token=DurationHistogram(BOUNDS, (0, 0, 4, 10, 40, 80, 30, 12, 4, 1, 0, 0, 0, 0), 60.0),
        first_token_last_seconds=0.184,
        lanes=(
            LaneStatus(0, 1, "decode", QosClass.INTERACTIVE, 911, 912, 812, 640),
            LaneStatus(1, 2, "decode", QosClass.AGENT, 1880, 1881, 1500, 1024),
            LaneStatus(2, 3, "prefill", QosClass.AGENT, 960, 1500, 1500, 0),
            LaneStatus(3, 4, "decode", QosClass.AGENT, 2410, 2411, 2044, 1980),
            LaneStatus(4, 5, "decode", QosClass.BACKGROUND, 4001, 4002, 3512, 3512),
            LaneStatus(5, held_tokens=3_120),
            LaneStatus(6, held_tokens=812),
            LaneStatus(7, held_tokens=6_004),
        ),
        tick=TickStatus(0.064, 0, 0, 4, 0),
        rates=EngineRates(81.0, 118.0),
    )
    return Sample(at, statistics, [41, 37, 40, 29, 18, 0, 0, 0], False, 0)


def page(tokens: int, used: int, lanes: int, queued: int, host: str) -> str:
    return (
        f"superfluid_decode_tokens_total {tokens}\nsuperfluid_lanes_active {lanes}\n"
        f"superfluid_pool_blocks_used {used}\nsuperfluid_pool_blocks_total 256\n"
        f'superfluid_queue_depth{{class="foreground_agent"}} {queued}\n'
        f'superfluid_node_info{{host="{host}"}} 1\n'
    )


def fleet() -> Fleet:
    """Four nodes after two minutes."""
    nodes = Fleet(["10.0.0.11:8453", "10.0.0.12:8453", "10.0.0.13:8453", "10.0.0.14:8453"])
    first, second, third, fourth = nodes.nodes
    for at in range(120):
        rate = 60 + 30 * math.sin(at / 9)
        first.take(Answer(at, 200, page(int(60 * at + 30 * 9 * (1 - math.cos(at / 9))), 102, 5, 0, "workbench")))
        second.take(Answer(at, 200, page(int(88 * at), 231, 8, 4 + int(rate) % 3, "attic")))
        third.take(Answer(at, 401))
        fourth.take(Answer(at, None))
        nodes.sample()
    return nodes


async def picture(app: App[Any], size: tuple[int, int], title: str) -> str:
    """An SVG of the app's screen."""
    async with app.run_test(size=size) as pilot:
        if isinstance(app, MonitorApp):
            app.draw()
        await pilot.pause()
        return app.export_screenshot(title=title)


def pictures() -> dict[str, str]:
    """The files by name."""
    top = TopApp(fleet(), [], interval_seconds=3600)
    return {
        "monitor.svg": asyncio.run(picture(MonitorApp(monitor_state(), None), (120, 44), "superfluid serve")),
        "top.svg": asyncio.run(picture(top, (90, 14), "superfluid top")),
    }


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    for name, svg in pictures().items():
        Path(arguments[0], name).write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
