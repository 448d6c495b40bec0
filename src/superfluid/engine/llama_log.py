"""llama.cpp's log: to Python's logging, or to nowhere; its errors feed our own messages. Runs in the worker."""

import logging
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

LOGGER_NAME: Final = "superfluid_daemon::engine"

_LEVELS: Final = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_ERROR = 4
_CONTINUATION = 5
_STATE_BUFFER: Final = re.compile(rb"(?:KV|RS) buffer size = +([0-9.]+) MiB")
_PREFIX: Final = re.compile(r"^(?:\w+: )?(?:error loading model: )?")

_installed: list[Any] = []
"""The callbacks ever given to llama.cpp. It may log at any time until the process ends, so they are never freed."""


class LlamaLog:
    """Receives the log of one library. ``is_kept`` hands all of it on; otherwise only errors are.

    While ``is_failure_expected`` its errors are no news: an aborted step is one to llama.cpp.
    """

    def __init__(self, binding: Any, *, is_kept: bool) -> None:
        self.is_failure_expected: Callable[[], bool] = lambda: False
        self._logger = logging.getLogger(LOGGER_NAME)
        self._is_kept = is_kept
        self._errors: deque[str] = deque(maxlen=16)
        self._line = ""
        self._level = 0
        self._state_mebibytes = 0.0
        self._callback = binding.llama_log_callback(self._receive)
        _installed.append(self._callback)
        binding.llama_log_set(self._callback, None)

    def listen_to(self, set_log: Callable[[Any, None], object]) -> None:
        """Receives the log of another library too, whose function for that is ``set_log``."""
        set_log(self._callback, None)

    def forget_errors(self) -> None:
        self._errors.clear()

    @property
    def state_bytes(self) -> int:
        """What the buffers for KV and recurrent states took, as llama.cpp reported it (to 10 kB)."""
        return round(self._state_mebibytes * (1 << 20))

    def cause(self) -> str | None:
        """The first error since ``forget_errors``: later ones only say what failed because of it."""
        return _PREFIX.sub("", self._errors[0]) if self._errors else None

    def _receive(self, level: int, text: bytes, _data: Any) -> None:
        """Called by llama.cpp, maybe from its threads. A line can come in pieces."""
        if level != _CONTINUATION:
            self._level = level
        buffer = _STATE_BUFFER.search(text)
        if buffer is not None:
            self._state_mebibytes += float(buffer[1])
        if not self._is_kept and (self._level < _ERROR or self.is_failure_expected()):
            return
        self._line += text.decode(errors="replace")
        if not self._line.endswith("\n"):
            return
        line, self._line = self._line.strip(), ""
        if self._level == _ERROR:
            self._errors.append(line)
        if line.strip("."):
            self._logger.log(_LEVELS.get(self._level, logging.INFO), "%s", line)
