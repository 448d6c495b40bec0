"""One POST to an OpenTelemetry collector: a single try, bounded in time and in what is read. Exporter threads only."""

import asyncio
from collections.abc import Mapping

import httpx
import msgspec

MAX_ANSWER_BYTES = 64 * 1024


class CollectorError(Exception):
    """Why the collector has not taken it, in words for a log line: transport, time or status."""


class CollectorClient:
    """Belongs to one event loop. ``headers`` go with every request; ``timeout_seconds`` is for a whole exchange."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_seconds: float) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds
        # Proxies from the environment are not asked: the collector is an address of the operator's own network.
        self._http = httpx.AsyncClient(
            headers={**headers, "content-type": "application/json"}, timeout=timeout_seconds, trust_env=False
        )

    async def post(self, body: bytes) -> bytes:
        """The start of the answer to a request that was taken. Raises CollectorError."""
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._http.stream("POST", self._url, content=body) as response,
            ):
                if not response.is_success:
                    raise CollectorError(f"the collector answered {response.status_code}")
                return await _start_of(response)
        except TimeoutError as error:
            raise CollectorError(f"the collector did not answer within {self._timeout_seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CollectorError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        await self._http.aclose()


async def _start_of(response: httpx.Response) -> bytes:
    answer = b""
    async for piece in response.aiter_bytes():
        answer += piece
        if len(answer) >= MAX_ANSWER_BYTES:
            break
    return answer[:MAX_ANSWER_BYTES]


def rejected_spans(answer: bytes, sent: int) -> int:
    """How many of the ``sent`` spans the collector says it has not kept; 0 if it says nothing that can be read."""
    try:
        parsed = msgspec.json.decode(answer) if answer else None
    except msgspec.MsgspecError:
        return 0
    partial = parsed.get("partialSuccess") if isinstance(parsed, dict) else None
    number = partial.get("rejectedSpans") if isinstance(partial, dict) else None
    if isinstance(number, str) and number.isascii() and number.isdecimal():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return 0
    return min(sent, max(0, int(number)))
