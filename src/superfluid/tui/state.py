"""What the monitor knows: the last sample, the history behind the charts, the log and where it is scrolled. Pure."""

from collections import deque
from typing import Final

from superfluid.domain.statistics import DurationHistogram, ModelStatistics
from superfluid.tui.protocol import Hello, LogLine, Sample

HISTORY_POINTS: Final = 160
LOG_LINES: Final = 2000
RATE_WINDOW_SECONDS: Final = 1.0


class MonitorState:
    """``take_*`` is called for every frame; everything else reads."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self.sample: Sample | None = None
        self.is_paused = False
        self.decode_history: deque[float] = deque(maxlen=HISTORY_POINTS)
        self.prefill_history: deque[float] = deque(maxlen=HISTORY_POINTS)
        self.pool_history: deque[float] = deque(maxlen=HISTORY_POINTS)
        self.decode_peak = 0.0
        self.prefill_peak = 0.0
        self.log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self.lines_back = 0
        self._window: deque[tuple[float, int, int]] = deque()
        self._ticks = 0

    @property
    def statistics(self) -> ModelStatistics | None:
        return None if self.sample is None else self.sample.statistics

    def take_hello(self, hello: Hello) -> None:
        """What the server printed at its start begins the log."""
        self.hello = hello
        for line in hello.banner.splitlines():
            if line.strip():
                self.take_log(LogLine("", line.strip()))

    def take_sample(self, sample: Sample) -> None:
        """While paused nothing on the screen moves, but how long the server has been up and whether it drains."""
        if self.is_paused and self.sample is not None:
            self.sample = Sample(
                sample.uptime_seconds,
                self.sample.statistics,
                self.sample.sessions,
                sample.is_draining,
                self.sample.dropped_lines,
            )
            return
        self.sample = sample
        decode, prefill = self._rates(sample)
        self.decode_history.append(decode)
        self.prefill_history.append(prefill)
        statistics = sample.statistics
        total = statistics.pool_blocks_total
        self.pool_history.append(statistics.pool_blocks_used / total if total else 0.0)
        self.decode_peak = max(self.decode_peak, decode)
        self.prefill_peak = max(self.prefill_peak, prefill)

    def take_log(self, line: LogLine) -> None:
        """A log that is scrolled back stays where it is."""
        is_full = len(self.log) == LOG_LINES
        self.log.append(line)
        if self.lines_back:
            self.lines_back = min(self.lines_back + 1, LOG_LINES - (1 if is_full else 0))

    def scroll(self, lines: int, height: int) -> None:
        """Back by ``lines`` (forward if negative), with ``height`` lines on the screen."""
        furthest = max(0, len(self.log) - height)
        self.lines_back = max(0, min(furthest, self.lines_back + lines))

    def visible_log(self, height: int) -> list[LogLine]:
        """The lines on the screen, oldest first."""
        end = len(self.log) - self.lines_back
        return list(self.log)[max(0, end - height) : end]

    def _rates(self, sample: Sample) -> tuple[float, float]:
        """Tokens a second over the last second: generated, and read from prompts."""
        statistics = sample.statistics
        now = sample.uptime_seconds
        window = self._window
        window.append((now, statistics.decode_tokens_total, statistics.prefill_tokens_total))
        while len(window) > 2 and now - window[1][0] >= RATE_WINDOW_SECONDS:
            window.popleft()
        begun, decoded, prefilled = window[0]
        if now <= begun:
            return 0.0, 0.0
        seconds = now - begun
        return (
            max(0, statistics.decode_tokens_total - decoded) / seconds,
            max(0, statistics.prefill_tokens_total - prefilled) / seconds,
        )


def share(part: float, rest: float) -> float | None:
    """``part`` of ``part`` and ``rest``; ``None`` if there is nothing of either."""
    return part / (part + rest) if part + rest > 0 else None


def quantile(histogram: DurationHistogram, q: float) -> float | None:
    """Seconds by which a share ``q`` of the durations ended: the bound of their bucket, interpolated within it. The
    last bucket has no end, so that its beginning stands for it. ``None`` without any."""
    total = sum(histogram.counts)
    if not total:
        return None
    wanted, seen, low = q * total, 0, 0.0
    for bound, count in zip(histogram.bounds_seconds, histogram.counts, strict=False):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen += count
        low = bound
    return low
