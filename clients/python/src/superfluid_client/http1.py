"""HTTP/1.1 as far as one listener needs it: one request after the other on a link, whole or streamed bodies."""

from collections.abc import Mapping
from dataclasses import dataclass

from superfluid_client.network import Link

_LONGEST_LINE_BYTES = 65_536
_MOST_HEADERS = 200
_WITHOUT_BODY = (204, 304)
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")


class MalformedHttpError(Exception):
    """What came is no HTTP."""


@dataclass(frozen=True, slots=True)
class Head:
    """A response without its body. Header names are in lower case; of repeated ones the last counts."""

    status: int
    reason: str
    headers: Mapping[str, str]
    is_kept_alive: bool


class HttpConnection:
    """Owns its link. Failures of that come through as OSError; a link that ends too early is ConnectionResetError.

    ``timeout_seconds`` is for each wait.
    """

    def __init__(self, link: Link, host: str, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._link = link
        self._host = host
        self._buffer = bytearray()
        # Bytes of the body, or of the chunk, that are still to come; None until the link's end.
        self._rest: int | None = 0
        self._is_chunked = False
        self._has_open_chunk = False
        self._is_body_over = True
        self._is_kept_alive = True

    @property
    def can_serve_again(self) -> bool:
        """Whether the last answer was read to its end, and the server keeps the connection."""
        return self._is_body_over and self._is_kept_alive and not self._buffer and self._link.is_idle()

    def close(self) -> None:
        self._link.close()

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Sends a request in one piece."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        await self._link.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body, self.timeout_seconds)

    async def read_head(self) -> Head:
        """The answer's head; its body comes from ``read_piece``. Raises MalformedHttpError."""
        head = await self._read_one_head()
        while 100 <= head.status < 200:
            head = await self._read_one_head()
        self._is_kept_alive = head.is_kept_alive
        self._is_chunked = head.headers.get("transfer-encoding", "").lower() == "chunked"
        self._has_open_chunk = False
        self._rest = 0 if self._is_chunked or head.status in _WITHOUT_BODY else _content_length(head)
        self._is_body_over = not self._is_chunked and self._rest == 0
        return head

    async def read_piece(self) -> bytes:
        """The next bytes of the body as they come; nothing at its end. Raises MalformedHttpError."""
        if self._is_chunked and self._rest == 0 and not self._is_body_over:
            await self._open_chunk()
        if self._is_body_over:
            return b""
        if not self._buffer:
            self._buffer += await self._link.receive(self.timeout_seconds)
        if not self._buffer:
            if self._rest is not None:
                raise ConnectionResetError("the server hung up in the middle of an answer")
            self._is_body_over, self._is_kept_alive = True, False
            return b""
        return self._take_piece()

    # ----

    def _take_piece(self) -> bytes:
        piece = bytes(self._buffer if self._rest is None else self._buffer[: self._rest])
        del self._buffer[: len(piece)]
        if self._rest is not None:
            self._rest -= len(piece)
            self._is_body_over = self._rest == 0 and not self._is_chunked
        return piece

    async def _open_chunk(self) -> None:
        if self._has_open_chunk:
            if await self._read_line():
                raise MalformedHttpError("a chunk is longer than it says")
            self._has_open_chunk = False
        size = (await self._read_line()).partition(b";")[0].strip()
        if not size or not _HEX_DIGITS.issuperset(size):
            raise MalformedHttpError(f"no chunk's size: {size[:40]!r}")
        self._rest = int(size, 16)
        self._has_open_chunk = True
        if self._rest == 0:
            while await self._read_line():
                pass  # trailers
            self._is_body_over = True

    async def _read_one_head(self) -> Head:
        line = await self._read_line()
        version, _, rest = line.decode("latin-1").partition(" ")
        status, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not (status.isdecimal() and len(status) == 3):
            raise MalformedHttpError(f"no HTTP answer: {line[:40]!r}")
        headers: dict[str, str] = {}
        while header := await self._read_line():
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > _MOST_HEADERS:
                raise MalformedHttpError("too many headers")
        wish = headers.get("connection", "").lower()
        is_kept_alive = "close" not in wish and (version != "HTTP/1.0" or "keep-alive" in wish)
        return Head(int(status), reason, headers, is_kept_alive)

    async def _read_line(self) -> bytes:
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > _LONGEST_LINE_BYTES:
                raise MalformedHttpError("a line without end")
            data = await self._link.receive(self.timeout_seconds)
            if not data:
                raise ConnectionResetError("the server hung up without an answer")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.removesuffix(b"\r")


def _content_length(head: Head) -> int | None:
    text = head.headers.get("content-length")
    if text is None:
        return None
    if not text.isdecimal():
        raise MalformedHttpError(f"no content length: {text[:40]!r}")
    return int(text)
