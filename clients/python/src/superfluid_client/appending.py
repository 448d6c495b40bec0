"""What can be put at a session's end."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from superfluid_client.asking import SessionRequests
from superfluid_client.parameters import BlockKind, Role
from superfluid_client.records import Event

Tool = Mapping[str, Any] | str
"""A declaration of a function: as a dict, or its JSON text."""


class Appending(SessionRequests):
    """Every method waits until what it appended is on the disk, and returns its event."""

    async def user(self, text: str) -> Event:
        """Appends a user's message."""
        return await self._append_message(Role.USER, text)

    async def system(self, text: str) -> Event:
        """Appends a system message. To declare tools as well, use ``declare``."""
        return await self._append_message(Role.SYSTEM, text)

    async def assistant(self, text: str) -> Event:
        """Appends an assistant's message that the model did not generate."""
        return await self._append_message(Role.ASSISTANT, text)

    async def declare(self, system: str | None = None, tools: Sequence[Tool] = ()) -> Event:
        """Opens the session with a system turn that declares ``tools``, each a dict or its JSON text.

        A tool is an OpenAI function tool, a bare function, or an Anthropic tool. Refused once the session has any text.
        """
        texts = [tool if isinstance(tool, str) else json.dumps(tool, ensure_ascii=False) for tool in tools]
        return await self._commit("AppendSystem", {"text": system, "tools": texts})

    async def append(self, text: str | None = None, span: Sequence[int] = ()) -> Event:
        """Appends text, or token ids, as they are, outside of any turn."""
        return await self._commit("Append", {"text": text, "span": list(span)})

    async def block(
        self, kind: BlockKind | int, payload: Mapping[str, Any] | str, *, role: Role | int = Role.USER
    ) -> Event:
        """Appends structured content, whose ``payload`` is a dict or its JSON text. The model is shown a turn of
        ``role`` made from it, or nothing, depending on ``kind``."""
        text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        return await self._commit("AppendBlock", {"role": int(role), "kind": int(kind), "payload": text})

    async def image(
        self,
        image: bytes | str,
        *,
        before: str = "",
        after: str = "",
        role: Role | int = Role.USER,
        mime: str = "application/octet-stream",
    ) -> Event:
        """Appends a turn that shows an image, with the text ``before`` and ``after`` it. ``image`` is a file's bytes,
        or the hash that ``put_media`` returned for them."""
        blob = image if isinstance(image, str) else await self.client.put_media(image, mime)
        fields = {"role": int(role), "blob": blob, "pre_text": before, "post_text": after}
        return await self._commit("AppendImage", fields)

    async def _append_message(self, role: Role, text: str) -> Event:
        return await self._commit("AppendMessage", {"role": int(role), "text": text})
