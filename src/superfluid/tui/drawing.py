"""Bars and charts out of characters, as Rich text in the terminal's own 16 colours. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from rich.text import Text

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def bar(part: float | None, cells: int) -> Text:
    """A gauge: green to 60 %, yellow to 85 %, red above. ``None`` is not known."""
    if part is None:
        return Text("·" * cells, "bright_black")
    part = min(1.0, max(0.0, part))
    filled = round(part * cells)
    return Text.assemble(("█" * filled, load_style(part)), ("░" * (cells - filled), "bright_black"))


def load_style(part: float) -> str:
    return "green" if part <= 0.6 else "yellow" if part <= 0.85 else "red"


def chart(values: Sequence[float], width: int, height: int, ceiling: float, style: str = "cyan") -> list[Text]:
    """The newest ``values`` as columns, right-aligned, with the ceiling and 0 at the left edge."""
    label_width = max(4, len(f"{ceiling:.0f}"))
    columns = max(1, width - label_width - 1)
    shown = list(values)[-columns:]
    levels = [0 if ceiling <= 0 else round(min(1.0, value / ceiling) * height * 8) for value in shown]
    rows: list[Text] = []
    for row in range(height):
        floor = (height - 1 - row) * 8
        label = f"{ceiling:.0f}" if row == 0 else "0" if row == height - 1 else ""
        cells = "".join(_EIGHTHS[min(8, max(0, level - floor))] for level in levels)
        rows.append(
            Text.assemble((label.rjust(label_width) + "│", "bright_black"), (cells.rjust(columns), style), no_wrap=True)
        )
    return rows


def nice_ceiling(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten, at least 10."""
    if value <= 10:
        return 10.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((factor * power for factor in (1.0, 2.0, 5.0) if value <= factor * power), 10.0 * power)


def duration(seconds: float) -> str:
    """``12 ms``, ``1.2 s``."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def clock(seconds: float) -> str:
    """Hours, minutes, seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def printable(text: str) -> str:
    """Without anything that could move a cursor or change a colour."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
