"""``POST /v1/tokenize``: a text as the default model reads it, with no chat frame. Runs in the daemon."""

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from superfluid.errors import InvalidRequestError, ModelLoadingError
from superfluid.http.bodies import ClientGoneError, parse_body, read_body
from superfluid.http.json_codec import decode_body
from superfluid.http.responses import send_response
from superfluid.sessions.interface import ModelDirectory

# Far more than a window holds: a text is tokenized beside those of requests that generate.
MAX_BODY_BYTES = 8 * 1024 * 1024


class _TokenizeBody(Struct, frozen=True):
    content: str | None = None
    text: str | None = None


_decoder = msgspec.json.Decoder(_TokenizeBody)


class TokenizePage:
    """An ASGI endpoint."""

    def __init__(self, models: ModelDirectory) -> None:
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(scope, receive, MAX_BODY_BYTES)
        except ClientGoneError:
            return
        body = await parse_body(raw, lambda data: decode_body(_decoder, data))
        text = body.content if body.content is not None else body.text
        if text is None:
            raise InvalidRequestError("content is missing: the text to tokenize", param="content")
        models = self._models.list_models()
        if not models:
            raise ModelLoadingError("the model is still loading")
        tokens = await models[0].tokenize(text)
        await send_response(send, 200, msgspec.json.encode({"tokens": tokens, "count": len(tokens)}))
