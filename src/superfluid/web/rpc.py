"""``/web/rpc``: one request, one reply. Runs in the daemon."""

from starlette.types import Receive, Scope, Send

from superfluid.errors import InvalidRequestError
from superfluid.http.bodies import parse_body, read_body
from superfluid.http.sse import until_hangup
from superfluid.native import requests
from superfluid.native.dispatch import answer, failure
from superfluid.native.encodings import encode_response, web_encoding
from superfluid.native.frames import MAX_FRAME_BYTES
from superfluid.native.requests import Request
from superfluid.native.schema import CodecError
from superfluid.sessions.session_api import SessionApi
from superfluid.web.answers import send_reply


class RpcEndpoint:
    """An ASGI endpoint. A client that hangs up does not stop what it asked for, unless that is a completion. All
    completions of the listener are taken from one bucket."""

    def __init__(self, api: SessionApi) -> None:
        self._api = api
        self._bucket = api.completion_bucket()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises CallerError on a body that is no request, and ClientGoneError."""
        body = await read_body(scope, receive, MAX_FRAME_BYTES)
        request = await parse_body(body, _parse)
        del body
        if isinstance(request, requests.Complete):
            await until_hangup(receive, self._reply(request, send))
        else:
            await self._reply(request, send)

    async def _reply(self, request: Request, send: Send) -> None:
        reply = await answer(self._api, request, self._bucket)
        try:
            payload = await encode_response(web_encoding(), reply)
        except CodecError as error:
            reply = failure(error)
            payload = web_encoding().encode(reply)
        await send_reply(send, reply, payload)


def _parse(body: bytes) -> Request:
    try:
        return web_encoding().decode(body)
    except CodecError as error:
        raise InvalidRequestError(f"the body is no request: {error}") from error
