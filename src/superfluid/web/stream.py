"""``/web/stream``: one generation as server-sent events. A client that hangs up cancels it. Runs in the daemon."""

from typing import assert_never

from starlette.types import Receive, Scope, Send

from superfluid.domain.events import Event
from superfluid.errors import InternalFaultError, InvalidRequestError, ShuttingDownError, SuperfluidError
from superfluid.http.bodies import parse_body, read_body
from superfluid.http.dialect import Framing
from superfluid.http.sse import ResponseStream, until_hangup
from superfluid.native.dispatch import named_failure
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.native.schema import CodecError
from superfluid.native.turns import begin_turn
from superfluid.native.web_stream import (
    StreamCommitted,
    StreamDone,
    StreamFailed,
    StreamFrame,
    StreamProvisional,
    StreamRequest,
    decode_stream_request,
    encode_stream_frame,
)
from superfluid.sessions.session_api import ProvisionalText, SessionApi, Turn, TurnEnded, TurnItem

FRAMING = Framing(content_type=b"text/event-stream", keepalive=b": keep-alive\n\n")
_END = b"data: [DONE]\n\n"


class StreamEndpoint:
    """An ASGI endpoint."""

    def __init__(self, api: SessionApi, keepalive_seconds: float) -> None:
        self._api = api
        self._keepalive_seconds = keepalive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises CallerError on a body that is no such request, and ClientGoneError; later failures are frames."""
        request = await parse_body(await read_body(scope, receive, MAX_FRAME_BYTES), _parse)
        await until_hangup(receive, self._stream(request, send))

    async def _stream(self, request: StreamRequest, send: Send) -> None:
        async with ResponseStream(send, FRAMING, self._keepalive_seconds) as stream:
            # At once: a generation may wait for a lane for a long time.
            await stream.begin(b"")
            is_over = False
            try:
                await self._generate(request, stream)
                is_over = True
            except Exception as error:  # noqa: BLE001  (supervision point: the failure is the stream's last event)
                is_over = True
                await stream.finish(_failure(named_failure(error)))
            finally:
                if not is_over:
                    # The client hung up, and gets nothing; or the server stops, and says so.
                    await stream.abandon(_failure(ShuttingDownError("the server is shutting down")))

    async def _generate(self, request: StreamRequest, stream: ResponseStream) -> None:
        turn = await begin_turn(
            self._api,
            request.session,
            request.max_tokens,
            transport="stream",
            wants_provisional=request.provisional,
        )
        try:
            await _relay(turn, stream)
        except BaseException:
            turn.cancel()
            raise


async def _relay(turn: Turn, stream: ResponseStream) -> None:
    """Each batch is one write. The body ends after the turn has, since a response that is over cannot be cut off."""
    last = b""
    async for batch in turn:
        frames = b"".join(_data(_frame(item)) for item in batch)
        if isinstance(batch[-1], TurnEnded):
            last = frames
        else:
            await stream.write(frames)
    if not last:
        raise InternalFaultError("the generation stopped without an end")
    await stream.finish(last + _END)


def _frame(item: TurnItem) -> StreamFrame:
    match item:
        case Event():
            return StreamCommitted(item)
        case ProvisionalText(channel, text):
            return StreamProvisional(channel, text)
        case TurnEnded(tokens_generated, finish, warm_prefix):
            return StreamDone(tokens_generated, finish, warm_prefix)
    assert_never(item)


def _data(frame: StreamFrame) -> bytes:
    return b"data: " + encode_stream_frame(frame) + b"\n\n"


def _failure(error: SuperfluidError) -> bytes:
    return _data(StreamFailed(error.message)) + _END


def _parse(body: bytes) -> StreamRequest:
    try:
        return decode_stream_request(body)
    except CodecError as error:
        raise InvalidRequestError(f"the body is no stream request: {error}") from error
