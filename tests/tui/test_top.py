"""The screen of ``superfluid top``, run headless."""

from collections.abc import Callable, Sequence

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from superfluid.tui.fleet import Answer, Fleet
from superfluid.tui.top import TopApp


def page(tokens: int, host: str) -> str:
    return (
        f"superfluid_decode_tokens_total {tokens}\nsuperfluid_lanes_active 2\n"
        f"superfluid_pool_blocks_used 9\nsuperfluid_pool_blocks_total 10\n"
        f'superfluid_node_info{{host="{host}"}} 1\n'
    )


def answers(*given: Answer) -> Callable[[], Answer]:
    """One after the other; the last for ever."""
    left = list(given)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def app(*polls: Callable[[], Answer]) -> TopApp:
    return TopApp(Fleet([f"node{index}:1" for index in range(len(polls))]), polls, interval_seconds=0.1)


def busy() -> TopApp:
    return app(
        answers(Answer(0.0, 200, page(0, "beta")), Answer(1.0, 200, page(40, "beta"))),
        answers(Answer(0.0, 200, page(0, "alpha")), Answer(1.0, 200, page(90, "alpha"))),
        answers(Answer(0.0, 401)),
        answers(Answer(0.0, None)),
    )


def table_of(running: TopApp) -> list[list[str]]:
    table = running.query_one("#nodes", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


async def wait_for(pilot: "Pilot[None]", condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError("the screen never showed it")


def shown(running: TopApp, widget: str) -> str:
    return str(running.query_one(widget, Static).content)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_every_node_has_a_row_with_its_state(size: tuple[int, int]) -> None:
    running = busy()
    async with running.run_test(size=size) as pilot:
        await wait_for(pilot, lambda: len(table_of(running)) == 4 and table_of(running)[3][1] == "down")
        rows, summary = table_of(running), shown(running, "#summary")
    assert rows[0][:3] == ["beta  node0:1", "up", "█████████████░  90%"]
    assert [row[1] for row in rows] == ["up", "up", "401", "down"]
    assert [row[2:] for row in rows[2:]] == [["-"] * 4] * 2
    assert "3/4 nodes reachable   1 need a key" in summary


def first_names(rows: Sequence[Sequence[str]]) -> list[str]:
    return [row[0].split()[0] for row in rows]


async def test_sort_key_goes_through_the_columns_and_says_which() -> None:
    running = busy()
    async with running.run_test() as pilot:
        await wait_for(pilot, lambda: len(table_of(running)) == 4 and table_of(running)[3][1] == "down")
        await pilot.press("s")
        assert first_names(table_of(running))[:2] == ["alpha", "beta"]
        assert "sort: node" in shown(running, "#keys")


async def test_filter_shows_matching_nodes_until_escape_clears_it() -> None:
    running = busy()
    async with running.run_test() as pilot:
        await wait_for(pilot, lambda: "alpha" in str(table_of(running)))
        await pilot.press("slash", "a", "l", "p", "enter")
        await wait_for(pilot, lambda: first_names(table_of(running)) == ["alpha"])
        assert "filter: alp" in shown(running, "#keys")
        await pilot.press("escape")
        await wait_for(pilot, lambda: len(table_of(running)) == 4)
        assert running.is_running


@pytest.mark.parametrize("key", ["q", "escape", "ctrl+c"])
async def test_leaving_keys_end_the_program(key: str) -> None:
    running = busy()
    async with running.run_test() as pilot:
        await pilot.press(key)
        await pilot.pause()
    assert not running.is_running
    assert running.return_code == 0
