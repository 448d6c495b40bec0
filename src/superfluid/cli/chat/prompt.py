"""The line editor: readline with a history of its own, pasted and continued lines, completion, a text to begin with."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Protocol

from superfluid.cli.chat.slash import completions

MAX_HISTORY = 1000


class Prompt(Protocol):
    """Where messages come from."""

    def read(self, label: str, prefill: str = "") -> str:
        """One message. Raises EOFError when there are no more, KeyboardInterrupt on Ctrl-C."""
        ...


class LinePrompt:
    """A terminal. ``history`` is a file that remembers what was typed, ``None`` to remember nothing.

    A pasted text is one message, whatever line breaks it has. Alt-Enter, or a backslash at the end, begins a new line.
    """

    def __init__(self, *, is_unicode: bool, has_color: bool, history: Path | None) -> None:
        self._mark = "›" if is_unicode else ">"
        self._has_color = has_color
        self._history = history
        self._readline = _load_readline()
        if self._readline is not None:
            _set_up(self._readline)
            self._load_history(self._readline)

    @property
    def is_editor(self) -> bool:
        """Whether lines can be edited: not in a Python that was built without readline."""
        return self._readline is not None

    def read(self, label: str, prefill: str = "") -> str:
        lines = [self._read_line(self._prompt(label, self._mark), prefill)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read_line(self._prompt(" " * len(label), "."), ""))
        text = "\n".join(lines)
        if text.strip():
            self._remember(text)
        return text

    # ----

    def _read_line(self, prompt: str, prefill: str) -> str:
        readline = self._readline
        if readline is None or not prefill:
            return input(prompt)
        readline.set_startup_hook(lambda: readline.insert_text(prefill))
        try:
            return input(prompt)
        finally:
            readline.set_startup_hook(None)

    def _prompt(self, label: str, mark: str) -> str:
        if not self._has_color:
            return f"{label}{mark} "
        return f"{_style('2')}{label}{_style('0')}{_style('1;36')}{mark}{_style('0')} "

    def _load_history(self, readline: ModuleType) -> None:
        for text in read_history(self._history):
            readline.add_history(text)

    def _remember(self, text: str) -> None:
        if self._readline is not None:
            self._readline.add_history(text)
        if self._history is not None:
            append_history(self._history, text)


def _style(code: str) -> str:
    """An escape sequence that readline does not count as something to see."""
    return f"\001\x1b[{code}m\002"


def _load_readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        # A Python built without it still has ``input``.
        return None
    return readline


def _set_up(readline: ModuleType) -> None:
    readline.set_auto_history(False)
    readline.set_completer(_complete)
    readline.set_completer_delims("")
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
        return
    for setting in (
        "set enable-bracketed-paste on",
        "tab: complete",
        r'"\e\C-m": "\C-v\C-j"',
    ):
        readline.parse_and_bind(setting)


def _complete(text: str, state: int) -> str | None:
    found = completions(text) or _file_completions(text)
    return found[state] if state < len(found) else None


def _file_completions(text: str) -> list[str]:
    """Files, for the commands that take one."""
    command, _, begun = text.partition(" ")
    if command not in ("/image", "/tools"):
        return []
    directory, stem = os.path.split(begun)
    try:
        names = sorted(os.listdir(os.path.expanduser(directory) or "."))
    except OSError:
        return []
    paths = [os.path.join(directory, name) for name in names if name.startswith(stem)]
    return [f"{command} {path}{'/' if os.path.isdir(os.path.expanduser(path)) else ''}" for path in paths]


def read_history(path: Path | None) -> list[str]:
    """What was typed in earlier chats, oldest first; nothing if it cannot be read."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    texts = [text for line in lines[-MAX_HISTORY:] if (text := _text_of(line)) is not None]
    if len(lines) > 2 * MAX_HISTORY:
        _write_history(path, texts)
    return texts


def append_history(path: Path, text: str) -> None:
    """One line of JSON a message, in a file for nobody else. A history that cannot be written is no reason to stop."""
    _write(path, os.O_APPEND, json.dumps(text) + "\n")


def _write_history(path: Path, texts: list[str]) -> None:
    _write(path, os.O_TRUNC, "".join(json.dumps(text) + "\n" for text in texts))


def _write(path: Path, mode: int, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return


def _text_of(line: str) -> str | None:
    try:
        text = json.loads(line)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


class StreamPrompt:
    """Lines of a stream, for a terminal whose output goes elsewhere: what asks is written by ``say``."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def read(self, label: str, prefill: str = "") -> str:
        self._say(f"{label}> ")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")
