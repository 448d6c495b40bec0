"""What the answers of both OpenAI routes share: identity, usage, and chunks spliced from constant bytes. Pure."""

from collections.abc import Sequence
from typing import Any

from superfluid.domain.reply import ReplyFinished
from superfluid.http.dialect import Opening
from superfluid.http.json_codec import encode

FINGERPRINT = "superfluid"


def identity(kind: str, prefix: str, opening: Opening) -> dict[str, Any]:
    """The members that every chunk and every answer of one request begin with."""
    return {
        "id": f"{prefix}-superfluid-{opening.reply_id}",
        "object": kind,
        "created": opening.created_unix,
        "model": opening.model_id,
        "system_fingerprint": FINGERPRINT,
    }


def usage(first: ReplyFinished, completion_tokens: int) -> dict[str, Any]:
    """``first`` tells of the prompt; the tokens are those of all replies."""
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": first.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": min(first.warm_tokens, first.prompt_tokens)},
    }


def guess_extras(finished: Sequence[ReplyFinished]) -> dict[str, Any]:
    """What was guessed ahead for these replies, as ``spec``; empty if nothing was."""
    proposed = sum([reply.guessed_tokens for reply in finished])
    if not proposed:
        return {}
    accepted = sum([reply.right_guesses for reply in finished])
    return {"spec": {"proposed": proposed, "accepted": accepted, "acceptance_rate": round(accepted / proposed, 4)}}


class ChunkSplicer:
    """Builds the chunks of one stream. Everything but a chunk's own few members is encoded once.

    Writing a chunk costs the encoding of its text and one join, which keeps the daemon off the engine's cores.
    """

    def __init__(self, members: dict[str, Any], prompt_tokens: int | None) -> None:
        """``prompt_tokens`` is set if every chunk is to carry a running usage."""
        self._prompt_tokens = prompt_tokens
        self._head = b"data: " + encode(members)[:-1] + b',"choices":[{"index":0,'
        self._plain_end = b',"finish_reason":null}]}\n\n'

    def head(self, opening: bytes) -> bytes:
        """The constant beginning of one kind of chunk, up to and including ``opening``."""
        return self._head + opening

    def end(self, tokens: int) -> bytes:
        """What closes a chunk that is not the last."""
        if self._prompt_tokens is None:
            return self._plain_end
        running = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self._prompt_tokens + tokens,
        }
        return b',"finish_reason":null}],"usage":' + encode(running) + b"}\n\n"

    def last(
        self, opening: bytes, finish_reason: str, finished: ReplyFinished, extras: dict[str, Any] | None = None
    ) -> bytes:
        """The terminal chunk, with the usage, and the end mark. ``extras`` are members of our own besides ``warm``."""
        tail = {
            "usage": usage(finished, finished.completion_tokens),
            "superfluid": {"warm": finished.warm_tokens, **guess_extras([finished]), **(extras or {})},
        }
        reason = b',"finish_reason":' + encode(finish_reason) + b"}],"
        return self._head + opening + reason + encode(tail)[1:] + b"\n\ndata: [DONE]\n\n"
