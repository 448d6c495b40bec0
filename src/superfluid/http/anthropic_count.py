"""``POST /v1/messages/count_tokens``: how long a conversation is for a model. Runs in the daemon."""

from starlette.types import Receive, Scope, Send

from superfluid.http.anthropic import messages_body
from superfluid.http.anthropic_messages import Conversation, conversation
from superfluid.http.bodies import ClientGoneError, parse_body, read_body
from superfluid.http.generation import GenerationContext
from superfluid.http.json_codec import encode
from superfluid.http.request_fields import required_model
from superfluid.http.responses import send_response


class CountTokensPage:
    """An ASGI endpoint."""

    def __init__(self, context: GenerationContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._context.max_body_bytes)
        except ClientGoneError:
            return
        name, asked = await parse_body(body, parse_count)
        count = await self._context.models.resolve(name).count_tokens(asked.prompt)
        await send_response(send, 200, encode({"input_tokens": count}))


def parse_count(body: bytes) -> tuple[str, Conversation]:
    """The model's name and what to count. Raises CallerError."""
    fields = messages_body(body)
    return required_model(fields.model), conversation(fields)
