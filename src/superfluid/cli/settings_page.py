"""Writes the tables of ``docs/settings.md`` from the flags as they are; a test fails if the page is out of date.

``python -m superfluid.cli.settings_page docs/settings.md`` replaces what stands between the page's marks.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from superfluid.cli.commands import Flag
from superfluid.cli.environment import VARIABLES
from superfluid.cli.retired_flags import CONTINUOUS_BATCHING, RETIRED_FLAGS
from superfluid.cli.serve import serve_command

_MARKED = re.compile(r"(?<=<!-- generated: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def updated(page: str) -> str:
    """``page`` with its generated tables as they should be."""
    tables = {"flags": _flag_tables(), "retired": _retired_table(), "environment": _variable_table()}
    return _MARKED.sub(lambda found: f"{found[1]} -->\n{tables[found[1]]}", page)


def _flag_tables() -> str:
    panels: dict[str, list[Flag]] = {}
    for parameter in serve_command().params:
        if isinstance(parameter, Flag) and not parameter.hidden:
            panels.setdefault(parameter.panel, []).append(parameter)
    columns = ("flag", "default", "effect", "accepted")
    return "\n".join(f"## {panel}\n\n{_table(columns, map(_row, panels[panel]))}" for panel in panels)


def _row(flag: Flag) -> tuple[str, str, str, str]:
    names = f"`{flag.written_as()}`"
    shown = {*flag.written_as().replace(",", " ").split()}
    aliases = [name for name in (*flag.opts, *flag.secondary_opts) if name not in shown]
    if aliases:
        names += f" (alias {', '.join(f'`{name}`' for name in aliases)})"
    return names, flag.default_text or "off", flag.help or "", flag.rule


def _retired_table() -> str:
    rows = [(f"`{CONTINUOUS_BATCHING} [N]`", "N sets `--max-batch` where that is not given")]
    rows += [(f"`{name}{' V' if has_value else ''}`", "none") for name, has_value in RETIRED_FLAGS.items()]
    return _table(("flag", "effect"), rows)


def _variable_table() -> str:
    rows = [(f"`{variable.name}`", variable.default, variable.meaning) for variable in VARIABLES]
    return _table(("variable", "default", "meaning"), rows)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [_line(columns), "|" + "---|" * len(columns)]
    lines += [_line(tuple(cell.replace("|", "\\|") for cell in row)) for row in rows]
    return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
