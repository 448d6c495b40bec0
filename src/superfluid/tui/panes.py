"""The monitor's panes, each a function from the state and a size to lines of text. Pure."""

from itertools import zip_longest
from typing import Final

from rich.text import Text

from superfluid.domain.statistics import LaneStatus, ModelStatistics, TickStatus
from superfluid.tui.drawing import bar, chart, clock, duration, load_style, nice_ceiling, printable
from superfluid.tui.protocol import LogLine
from superfluid.tui.state import MonitorState, quantile, share

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_CLASSES: Final = ("interactive", "completion", "agent", "background")
_QUEUE_CELLS: Final = 20
_ROOMY: Final = 70
_DIM: Final = "bright_black"
_LEVEL_STYLES: Final = {"ERROR": "bold red", "WARN": "yellow", "INFO": "", "DEBUG": _DIM, "TRACE": _DIM}


def header(state: MonitorState, width: int, frame: int) -> list[Text]:
    """Two lines: who this is; and the tick in flight."""
    hello, sample = state.hello, state.sample
    if hello is None or sample is None:
        return [Text("superfluid: waiting for the server"), Text("")]
    is_busy = sample.statistics.lanes_active > 0
    # On 80 columns there is no room for both, and what the next q does matters more.
    details = "" if sample.is_draining else f"  {printable(hello.engine)}"
    first = Text.assemble(
        (_SPINNER[frame % len(_SPINNER)] if is_busy else "●", "green"),
        " ",
        (printable(hello.model), "bold"),
        f" on {printable(hello.node)}",
        (details, _DIM),
        "" if sample.is_draining else f"  up {clock(sample.uptime_seconds)}",
        ("  PAUSED" if state.is_paused else "", "bold yellow"),
        ("  DRAINING, q again stops at once" if sample.is_draining else "", "bold yellow"),
    )
    first.truncate(width, overflow="ellipsis")
    return [first, _tick_line(sample.statistics.tick, hello.tick_target_seconds, width, hello.url)]


def _tick_line(tick: TickStatus, target_seconds: float, width: int, url: str) -> Text:
    """What the engine does now; parts that do not fit are left out, from the end."""
    if tick.seconds <= 0 and not (tick.prefill_tokens or tick.decode_lanes):
        text = Text.assemble(("between ticks", _DIM), ("  " + url, _DIM))
        text.truncate(width, overflow="ellipsis")
        return text
    parts = [
        f"prefill {tick.prefill_tokens} tokens on {_lanes(tick.prefill_lanes)}" if tick.prefill_tokens else "",
        f"decode {_lanes(tick.decode_lanes)}" if tick.decode_lanes else "",
        f"{tick.admissions} admitted" if tick.admissions else "",
    ]
    over = tick.seconds / target_seconds if target_seconds else 0.0
    text = Text.assemble("tick ", (duration(tick.seconds), "red" if over > 3 else "yellow" if over > 1.25 else "green"))
    for part in filter(None, parts):
        if text.cell_len + len(part) + 2 <= width:
            text.append("  " + part)
    return text


def _lanes(count: int) -> str:
    return f"{count} lane" if count == 1 else f"{count} lanes"


def gauges(state: MonitorState, width: int) -> list[Text]:
    """Lanes and KV pool."""
    statistics = state.statistics
    if statistics is None or state.hello is None:
        return []
    lanes, active = state.hello.lanes, statistics.lanes_active
    total, used = statistics.pool_blocks_total, statistics.pool_blocks_used
    part = used / total if total else None
    busy = active / lanes
    is_wide = width >= _ROOMY
    cells = max(6, min(30, width - (44 if is_wide else 30)))
    pool = "capacity unknown" if part is None else f"{used:,}/{total:,} blocks {part:4.0%}"
    if is_wide and part is not None:
        pool += f"  {total - used:,} free"
    return [
        Text.assemble("lanes   ", bar(busy, cells), f" {active}/{lanes} {busy:4.0%}  {lanes - active} free"),
        Text.assemble("KV pool ", bar(part, cells), f" {pool}"),
    ]


def rates(state: MonitorState) -> list[Text]:
    """How fast it is, and how much it need not compute."""
    statistics = state.statistics
    if statistics is None:
        return []
    decode = state.decode_history[-1] if state.decode_history else 0.0
    prefill = state.prefill_history[-1] if state.prefill_history else 0.0
    is_idle = statistics.lanes_active == 0
    last = statistics.rates
    warm = share(statistics.warm_prefix_tokens_total, statistics.prefill_tokens_total)
    return [
        _rate("decode ", last.decode_tokens_per_second if is_idle else decode, is_last=is_idle),
        _rate("prefill", last.prefill_tokens_per_second if is_idle else prefill, is_last=is_idle),
        _first_token_line(statistics),
        Text.assemble("reused  ", (_percent(warm), "cyan"), " of prompt tokens"),
        *_guesses_line(statistics),
    ]


def _guesses_line(statistics: ModelStatistics) -> list[Text]:
    """Nothing where nothing is guessed ahead."""
    proposed, accepted = statistics.spec_proposed_total, statistics.spec_accepted_total
    right = share(accepted, proposed - accepted)
    return [] if right is None else [Text.assemble("guessed ", (_percent(right), "cyan"), f" right of {proposed:,}")]


def _rate(name: str, value: float, *, is_last: bool) -> Text:
    style = _DIM if is_last else "bold"
    return Text.assemble(f"{name} ", (f"{value:7.1f} tok/s", style), (" (last)" if is_last else "", _DIM))


def _first_token_line(statistics: ModelStatistics) -> Text:
    last = statistics.first_token_last_seconds
    median, high = quantile(statistics.first_token, 0.5), quantile(statistics.first_token, 0.95)
    if median is None or high is None:
        return Text.assemble("ttft    ", ("none yet", _DIM))
    style = "green" if last <= 0.3 else "yellow" if last <= 0.8 else "red"
    spread = f"  p50 {duration(median)}  p95 {duration(high)}"
    return Text.assemble("ttft    ", (duration(last), style), (spread, _DIM))


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def lane_table(state: MonitorState, width: int, height: int) -> list[Text]:
    """A row for each lane that works, then what the free ones hold; what does not fit is summed up."""
    sample = state.sample
    if sample is None:
        return []
    title = f"{'lane':>4}  {'session':>8}  {'class':<11}  {'phase':<7}  {'prompt':>7}  {'reply':>6}  {'in KV':>7}"
    rows = [Text(title[:width], _DIM)]
    pairs = list(zip_longest(sample.statistics.lanes, sample.sessions[: len(sample.statistics.lanes)], fillvalue=0))
    busy = [
        _lane_row(lane, session, width)
        for lane, session in pairs
        if isinstance(lane, LaneStatus) and lane.job_id and isinstance(session, int)
    ]
    free = [lane for lane in sample.statistics.lanes if not lane.job_id]
    if not busy:
        rows.append(Text("   no lane is busy", _DIM))
    rows += busy
    held = sum(lane.held_tokens for lane in free)
    if free and held:
        rows.append(Text(f"   {_lanes(len(free))} free, holding {held:,} tokens for reuse"[:width], _DIM))
    if len(rows) > height > 1:
        hidden = len(rows) - height + 1
        rows = [*rows[: height - 1], Text(f"   and {hidden} more", _DIM)]
    return rows[:height]


def _lane_row(lane: LaneStatus, session: int, width: int) -> Text:
    done = lane.held_tokens / lane.stream_tokens if lane.stream_tokens else 0.0
    reply = max(0, lane.stream_tokens - lane.prompt_tokens)
    row = Text.assemble(
        f"{lane.lane:>4}  {session or '-':>8}  ",
        f"{_CLASSES[lane.qos]:<11}  ",
        (f"{lane.phase:<7}", "yellow" if lane.phase == "prefill" else "green"),
        f"  {lane.prompt_tokens:>7}  {reply:>6}  {lane.held_tokens:>7}  ",
    )
    room = width - row.cell_len - 7
    if lane.phase == "prefill" and room >= 6:
        row.append_text(bar_plain(done, min(20, room)))
        row.append(f" {done:4.0%}")
    row.truncate(width)
    return row


def bar_plain(part: float, cells: int) -> Text:
    """Progress, which is not the better or worse for being high."""
    filled = round(min(1.0, max(0.0, part)) * cells)
    return Text.assemble(("█" * filled, "cyan"), ("░" * (cells - filled), _DIM))


def queues(state: MonitorState, width: int) -> list[Text]:
    """Who waits, by class."""
    statistics = state.statistics
    if statistics is None:
        return []
    cells = max(1, min(_QUEUE_CELLS, width // 2 - 20))
    return [
        Text.assemble(
            f"{name:<11} ",
            (f"{depth:>4} ", "yellow" if depth else _DIM),
            ("█" * min(cells, depth), "yellow"),
        )
        for name, depth in zip(_CLASSES, statistics.queue_depth, strict=True)
    ]


def charts(state: MonitorState, width: int, height: int) -> list[Text]:
    """Decode and prefill rates over time, one above the other."""
    each = max(2, (height - 2) // 2)
    lines: list[Text] = []
    for name, history, peak, style in (
        ("decode tok/s", state.decode_history, state.decode_peak, "green"),
        ("prefill tok/s", state.prefill_history, state.prefill_peak, "yellow"),
    ):
        now = history[-1] if history else 0.0
        lines.append(Text(f"{name}  now {now:.0f}  peak {peak:.0f}"[:width], _DIM))
        lines += chart(list(history), width, each, nice_ceiling(max(history, default=0.0)), style)
    return lines[:height]


def pool_chart(state: MonitorState, width: int, height: int) -> list[Text]:
    """How full the KV pool is, over time."""
    history = [value * 100 for value in state.pool_history]
    now = history[-1] if history else 0.0
    low, high = min(history, default=0.0), max(history, default=0.0)
    title = Text(f"KV pool %  now {now:.0f}  low {low:.0f}  high {high:.0f}"[:width], _DIM)
    return [title, *chart(history, width, max(2, height - 1), 100.0, load_style(now / 100))][:height]


def counters(state: MonitorState, width: int) -> list[Text]:
    """Totals since the start, as many to a line as fit."""
    statistics = state.statistics
    if statistics is None or state.sample is None:
        return []
    entries = [
        ("ticks", f"{statistics.ticks_total:,}"),
        ("generated", f"{statistics.decode_tokens_total:,}"),
        ("prefilled", f"{statistics.prefill_tokens_total:,}"),
        ("reused", f"{statistics.warm_prefix_tokens_total:,}"),
        ("cold", f"{statistics.cold_admissions_total:,}"),
        ("saves", f"{statistics.host_saves_total:,}"),
        ("restores", f"{statistics.host_restores_total:,}"),
        ("respawns", f"{statistics.respawns_total:,}"),
        ("tick", duration(statistics.tick_wall_seconds)),
        ("chunk", f"{statistics.prefill_budget_tokens:,}"),
        ("grant", f"{statistics.decode_grant_tokens:,}"),
        ("log lines lost", f"{state.sample.dropped_lines:,}"),
    ]
    lines: list[Text] = [Text()]
    for name, value in entries:
        part = Text.assemble((f"{name} ", _DIM), value, "   ")
        if lines[-1].cell_len and lines[-1].cell_len + part.cell_len > width:
            lines.append(Text())
        lines[-1].append_text(part)
    return lines


def log_title(state: MonitorState, width: int) -> Text:
    where = f"{state.lines_back} lines back, End follows" if state.lines_back else "following"
    return Text(f"── log, {where} {'─' * width}"[:width], _DIM)


def log_lines(state: MonitorState, width: int, height: int) -> list[Text]:
    model = "" if state.hello is None else state.hello.model
    return [_log_line(line, width, model) for line in state.visible_log(height)]


def _log_line(line: LogLine, width: int, model: str) -> Text:
    """Where there is no room for all of it, the model, which the header names, gives way to the numbers behind it."""
    words = line.text if len(line.text) <= width else line.text.replace(f" model={model} ", " ", 1)
    text = Text(printable(words), _LEVEL_STYLES.get(line.level, ""))
    text.truncate(width, overflow="ellipsis")
    return text


HELP: Final = """\
q, Esc, Ctrl-C  stop the server once it has finished what it is doing;
                a second time stops it at once
p               freeze the numbers, or let them go on
Up, Down        scroll the log by a line; the wheel by three
PgUp, PgDn      scroll the log by ten
g               the log's oldest line
End             follow the log again
?               this help

lanes           requests that are generated at once
KV pool         memory of all lanes for the tokens they have read
reused          prompt tokens that need not be computed again
ttft            from a lane to the first token: last, median, 95 %"""
