"""The last lines of a terminal, drawn again and again in place; what is above them stays in the scrollback."""

from collections.abc import Callable, Sequence
from typing import Protocol

from rich.text import Text

# Terminals that know it show nothing between these two; others ignore them.
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_ERASE_BELOW = "\x1b[J"


class Writer(Protocol):
    """What it needs of a stream."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class LiveRegion:
    """Owns the lines it drew last. The cursor stands at the end of the last one; nobody else may write meanwhile.

    Lines come styled, none wider than the terminal. Only those that changed are written. ``size`` is (columns, rows).
    """

    def __init__(self, stream: Writer, size: Callable[[], tuple[int, int]]) -> None:
        self._stream = stream
        self._size = size
        self._lines: list[str] = []
        self._columns = 0

    @property
    def columns(self) -> int:
        """The terminal's width now."""
        return self._size()[0]

    @property
    def max_lines(self) -> int:
        """How many lines fit: what has left the screen can never be drawn again."""
        return max(1, self._size()[1] - 1)

    def draw(self, lines: Sequence[str], *, above: Sequence[str] = ()) -> None:
        """Shows ``lines`` in the place of the old ones, and ``above`` them lines that stay for good.

        Of too many lines the last ones are shown.
        """
        shown = list(lines[-self.max_lines :])
        columns = self._size()[0]
        kept = 0
        if not above and columns == self._columns:
            kept = _common(self._lines, shown)
            if kept == len(self._lines) == len(shown):
                return
        # The last line kept may have been the last of all: then there is no line break behind it yet.
        fresh = [*above, *shown[kept:]]
        text = self._rewind(kept, columns)
        if kept and fresh:
            text += "\n"
        text += "\n".join(fresh)
        if above and not shown:
            text += "\n"
        self._write(text)
        self._lines, self._columns = shown, columns

    def clear(self) -> None:
        """Removes the lines; the cursor is where they began."""
        if self._lines:
            self._write(self._rewind(0, self._size()[0]))
        self._lines = []

    def _rewind(self, kept: int, columns: int) -> str:
        """Moves to the end of the ``kept``-th line (0: to the beginning of the first one) and erases what is below."""
        if not self._lines:
            return ""
        if kept == len(self._lines):
            return ""
        if kept:
            return f"{_up(len(self._lines) - kept)}\r{_right(self._lines[kept - 1])}{_ERASE_BELOW}"
        return f"{_up(self._rows(columns) - 1)}\r{_ERASE_BELOW}"

    def _rows(self, columns: int) -> int:
        """The rows that the old lines take now. A terminal that became narrower has wrapped them."""
        if columns >= self._columns:
            return len(self._lines)
        widths = (Text.from_ansi(line).cell_len for line in self._lines)
        return sum(max(1, -(-width // columns)) for width in widths)

    def _write(self, text: str) -> None:
        self._stream.write(f"{_BEGIN_UPDATE}{text}{_END_UPDATE}")
        self._stream.flush()


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines at the beginning are the same."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows > 0 else ""


def _right(line: str) -> str:
    width = Text.from_ansi(line).cell_len
    return f"\x1b[{width}C" if width else ""
