"""Server-sent events, as far as this API uses them. Pure."""


class SseDecoder:
    """Takes a stream's lines and hands out the data of each event. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def take_line(self, line: bytes) -> str | None:
        """The event's data if ``line`` is the blank one that ends it. Raises UnicodeDecodeError, a ValueError."""
        text = line.decode("utf-8").rstrip("\r\n")
        if not text:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        name, _, value = text.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None
