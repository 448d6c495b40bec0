"""How a pull shows itself: a bar on a terminal, plain lines elsewhere. In the daemon, before it serves."""

from typing import Protocol, TextIO


class PullProgress(Protocol):
    """Told by a pull how far it is. One transfer at a time: ``begin``, any number of ``update``, ``end``."""

    def begin(self, label: str, total_bytes: int | None) -> None: ...

    def update(self, done_bytes: int) -> None:
        """``done_bytes`` counts from the start of the file, bytes of an earlier attempt included."""
        ...

    def end(self) -> None:
        """Also after a failure; may be called twice."""
        ...

    def note(self, text: str) -> None:
        """One line for the person who waits."""
        ...


class SilentProgress:
    """Shows nothing."""

    def begin(self, label: str, total_bytes: int | None) -> None: ...

    def update(self, done_bytes: int) -> None: ...

    def end(self) -> None: ...

    def note(self, text: str) -> None: ...


class LineProgress:
    """A line at the start and one for every tenth, for log files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._label = ""
        self._total: int | None = None
        self._tenths = 0

    def begin(self, label: str, total_bytes: int | None) -> None:
        self._label, self._total, self._tenths = label, total_bytes, 0
        size = f", {format_bytes(total_bytes)}" if total_bytes else ""
        self.note(f"fetching {label}{size}")

    def update(self, done_bytes: int) -> None:
        if not self._total:
            return
        tenths = min(10, done_bytes * 10 // self._total)
        if tenths > self._tenths:
            self._tenths = tenths
            self.note(f"fetching {self._label}: {tenths * 10} %")

    def end(self) -> None: ...

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class BarProgress:
    """A bar with rate and time left, drawn by Rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._console = Console(file=stream)
        self._columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._new_bar = Progress
        self._bar: Progress | None = None

    def begin(self, label: str, total_bytes: int | None) -> None:
        self.end()
        self._bar = self._new_bar(*self._columns, console=self._console, expand=True)
        self._bar.add_task(_shortened(label), total=total_bytes)
        self._bar.start()

    def update(self, done_bytes: int) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done_bytes)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


def progress_for(stream: TextIO) -> PullProgress:
    """A bar if ``stream`` is a terminal, else plain lines."""
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


def format_bytes(count: int) -> str:
    """``count`` in the decimal unit that reads best: 98 MB, 4.7 GB."""
    if count < 1_000:
        return f"{count} bytes"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1_000
        if size < 999.5:
            return f"{size:.1f} {unit}" if size < 9.95 else f"{size:.0f} {unit}"
    return f"{size / 1_000:.1f} TB"


def _shortened(label: str, limit: int = 36) -> str:
    return label if len(label) <= limit else "…" + label[-(limit - 1) :]
