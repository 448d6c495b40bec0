"""The routes about LoRA adapters: list, load, unload. Runs in the daemon; errors are those of the OpenAI dialect."""

from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from superfluid.errors import InvalidRequestError
from superfluid.http.bodies import ClientGoneError, read_body
from superfluid.http.json_codec import decode_body
from superfluid.http.responses import send_response
from superfluid.sessions.interface import AdapterDirectory, ServedAdapter

MAX_BODY_BYTES = 64 * 1024


class _LoadBody(Struct, frozen=True):
    path: str | None = None
    name: str | None = None


class _UnloadBody(Struct, frozen=True):
    name: str | None = None


_load_decoder = msgspec.json.Decoder(_LoadBody)
_unload_decoder = msgspec.json.Decoder(_UnloadBody)


class LoraPages:
    """Each method is an ASGI endpoint."""

    def __init__(self, adapters: AdapterDirectory) -> None:
        self._adapters = adapters

    async def list_adapters(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = [adapter_entry(adapter) for adapter in self._adapters.list_adapters()]
        await _answer(send, {"object": "list", "data": entries})

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers when requests can have the adapter."""
        try:
            body = decode_body(_load_decoder, await read_body(scope, receive, MAX_BODY_BYTES))
        except ClientGoneError:
            return
        if body.path is None:
            raise InvalidRequestError("path is missing: the adapter's file on the server's machine", param="path")
        await _answer(send, adapter_entry(await self._adapters.load_adapter(body.name, body.path)))

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers at once; requests that have the adapter go on to their end."""
        try:
            body = decode_body(_unload_decoder, await read_body(scope, receive, MAX_BODY_BYTES))
        except ClientGoneError:
            return
        if body.name is None:
            raise InvalidRequestError("name is missing: the adapter's, as it was loaded", param="name")
        await _answer(send, adapter_entry(self._adapters.unload_adapter(body.name)) | {"loaded": False})


def adapter_entry(model: ServedAdapter) -> dict[str, Any]:
    """The adapter as its own routes show it. ``id`` is what requests name as their model."""
    adapter = model.adapter
    return {
        "name": adapter.name,
        "object": "lora",
        "id": model.model_id,
        "parent": model.base_id,
        "path": adapter.path,
        "created": adapter.loaded_unix,
        "loaded": True,
    }


async def _answer(send: Send, members: dict[str, Any]) -> None:
    await send_response(send, 200, msgspec.json.encode(members))
