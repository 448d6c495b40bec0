"""Log-probabilities in the two shapes of the OpenAI dialect. Pure."""

from collections.abc import Sequence
from typing import Any

from superfluid.domain.reply import TokenAlternative, TokenLogprob


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The shape of chat choices: one object per token."""
    return {"content": [chat_logprob(entry) for entry in entries], "refusal": None}


def chat_logprob(entry: TokenLogprob) -> dict[str, Any]:
    """One token with the best candidates at its place."""
    return {**_chat_token(entry.chosen), "top_logprobs": [_chat_token(candidate) for candidate in entry.top]}


def _chat_token(candidate: TokenAlternative) -> dict[str, Any]:
    # A token can be a part of a character: ``bytes`` is exact, ``token`` is for reading.
    return {"token": _text(candidate), "logprob": candidate.logprob, "bytes": list(candidate.piece)}


class LegacyLogprobs:
    """The shape of text completions: parallel lists. ``offset_bytes`` is where the next token begins in the text."""

    def __init__(self, offset_bytes: int = 0) -> None:
        self._offset_bytes = offset_bytes

    def write(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset_bytes)
            self._offset_bytes += len(entry.chosen.piece)
        return {
            "tokens": [_text(entry.chosen) for entry in entries],
            "token_logprobs": [entry.chosen.logprob for entry in entries],
            "top_logprobs": [{_text(candidate): candidate.logprob for candidate in entry.top} for entry in entries],
            "text_offset": offsets,
        }


def _text(candidate: TokenAlternative) -> str:
    return candidate.piece.decode("utf-8", "replace")
