"""Digests of conversations, so that a request over HTTP finds the stored session its messages begin with. Pure.

A digest covers everything that decides the tokens of the rendered messages, and leaves out what clients do not send
back alike: reasoning, ids of calls, the spelling of JSON arguments.
"""

import hashlib
import json
from collections.abc import Sequence

import msgspec

from superfluid.domain.request import ChatPrompt, Message

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def conversation_digests(prompt: ChatPrompt, identity: bytes) -> list[bytes]:
    """One digest per message: that of the conversation up to and including it."""
    digest = hashlib.sha256(identity + _encode((prompt.tools, prompt.template_kwargs))).digest()
    digests: list[bytes] = []
    for message in prompt.messages:
        digest = extended_digest(digest, message)
        digests.append(digest)
    return digests


def extended_digest(digest: bytes, message: Message) -> bytes:
    """The digest of a conversation with ``message`` behind it."""
    calls = [(call.name, _canonical(call.arguments)) for call in message.tool_calls]
    return hashlib.sha256(digest + _encode((message.role, message.content, calls, message.name))).digest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return arguments


def spans_of(tokens: Sequence[int], ends: Sequence[int], first: int) -> list[tuple[int, ...]]:
    """The spans of messages ``first`` on, and last that of what follows the messages (the assistant header)."""
    starts = [ends[first - 1] if first else 0, *ends[first:]]
    stops = [*ends[first:], len(tokens)]
    return [tuple(tokens[start:stop]) for start, stop in zip(starts, stops, strict=True)]
