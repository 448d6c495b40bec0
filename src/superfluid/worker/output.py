"""Cuts what a worker prints into log lines. Pure; used in the daemon."""

MAX_LINE_BYTES = 16 * 1024
_MAX_CONTINUATION_BYTES = 3
DEBUG_PREFIXES = ("[tick]", "[pressure]")
"""How lines begin that somebody asked for through the environment: handed on as they are, past the log's filter."""


class LineSplitter:
    """Bytes in, whole lines out. Lines over ``max_line_bytes`` are cut; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._rest = bytearray()
        self._max = max_line_bytes

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes, without their ends; empty lines are left out."""
        *whole, rest = (self._rest + data).split(b"\n")
        lines = [part for line in whole for part in self._cut(line)]
        *full, rest = self._cut(rest)
        self._rest = rest
        return [text for part in (*lines, *full) if (text := _decode(part))]

    def finish(self) -> list[str]:
        """What is left when the stream ends."""
        rest, self._rest = self._rest, bytearray()
        text = _decode(rest)
        return [text] if text else []

    def _cut(self, line: bytearray) -> list[bytearray]:
        parts = []
        while len(line) > self._max:
            end = _character_start(line, self._max)
            parts.append(line[:end])
            line = line[end:]
        parts.append(line)
        return parts


def _character_start(line: bytearray, end: int) -> int:
    """The last place at or before ``end`` where a UTF-8 character may begin."""
    for back in range(min(_MAX_CONTINUATION_BYTES, end - 1) + 1):
        if line[end - back] & 0xC0 != 0x80:
            return end - back
    return end


def _decode(line: bytearray) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")
