import stat
from pathlib import Path

from superfluid.cli.chat.prompt import MAX_HISTORY, append_history, read_history


def test_history_keeps_line_breaks_and_is_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history"
    for text in ("one", "two\nlines", "drei ›"):
        append_history(path, text)
    assert read_history(path) == ["one", "two\nlines", "drei ›"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_history_passes_over_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\nnot json\n{"a": 1}\n\xff\n"two"\n')
    assert read_history(path) == ["one", "two"]


def test_history_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_history(tmp_path / "absent") == []
    assert read_history(None) == []
    append_history(tmp_path, "a directory cannot be appended to")


def test_history_does_not_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f'"{number}"\n' for number in range(2 * MAX_HISTORY + 5)))
    newest = [str(number) for number in range(MAX_HISTORY + 5, 2 * MAX_HISTORY + 5)]
    assert read_history(path) == newest
    assert len(path.read_text().splitlines()) == MAX_HISTORY
    assert read_history(path) == newest
