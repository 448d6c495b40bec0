"""Server-sent events, as far as this API uses them. Pure."""

from collections import deque


class SseDecoder:
    """Takes a stream's bytes and hands out the data of each event. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []
        self._events: deque[str] = deque()

    def feed(self, piece: bytes) -> None:
        """Raises UnicodeDecodeError, a ValueError."""
        searched = len(self._rest)
        self._rest += piece
        while (end := self._rest.find(b"\n", searched)) >= 0:
            self._take_line(bytes(self._rest[:end]))
            del self._rest[: end + 1]
            searched = 0

    def next_event(self) -> str | None:
        """The data of the next event that is complete."""
        return self._events.popleft() if self._events else None

    def _take_line(self, line: bytes) -> None:
        text = line.decode("utf-8").rstrip("\r")
        if not text:
            if self._data:
                self._events.append("\n".join(self._data))
                self._data = []
            return
        name, _, value = text.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
