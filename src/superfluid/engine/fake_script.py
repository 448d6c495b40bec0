"""What the fake engine says, and when it misbehaves: the script record, its file format, and the next-token rule.

A script file is one JSON object with the fields of ``FakeScript``; all of them are optional:
``{"replies": [{"when": "weather", "text": "<think>hm</think>Rain."}, {"text": "Hello!"}], "step_seconds": 0.01}``
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from superfluid.domain.request import SamplingOverrides
from superfluid.engine.fake_vocabulary import (
    SPECIAL_IDS,
    TURN_END,
    TURN_START,
    encode_plain,
    encode_with_markers,
    piece,
)
from superfluid.errors import ModelFileError

_ASSISTANT_HEADER = (SPECIAL_IDS[TURN_START], *encode_plain("assistant\n"))
_USER_HEADER = (SPECIAL_IDS[TURN_START], *encode_plain("user\n"))
_END = SPECIAL_IDS[TURN_END]
_RAW_LOOKBACK_TOKENS = 4096


class ScriptedReply(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``text`` (markers recognised; the end of the turn is added) is said if ``when`` occurs in the conversation from
    its last user turn on; ``when`` ``None`` always fits. ``text`` ``None`` is hashed babble."""

    when: str | None = None
    text: str | None = None


class FakeScript(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Behaviour of one fake engine.

    Of ``replies`` the first that fits is said; none fits: hashed babble, in a chat ended after ``babble_tokens`` if
    that is set, else endless. A step takes ``step_seconds`` and ``token_seconds`` a token. Steps count from 1, each
    call of ``step`` is one: ``fault_steps`` raise EngineFaultError, ``crash_step`` and ``crash_token`` abort the
    process. With ``crash_marker`` it aborts only if that file does not exist yet, and creates it first: one crash, then
    a sound life. An image takes ``image_tokens`` places (at least 2, for it comes in two halves); 0 sees none. With
    ``flash_attention`` it says that it is not exact.
    """

    replies: tuple[ScriptedReply, ...] = ()
    babble_tokens: int | None = None
    step_seconds: float = 0.0
    token_seconds: float = 0.0
    load_seconds: float = 0.0
    load_error: str | None = None
    fault_steps: tuple[int, ...] = ()
    crash_step: int | None = None
    crash_token: int | None = None
    crash_marker: str | None = None
    can_truncate: bool = True
    trained_window_tokens: int = 8192
    image_tokens: int = 0
    sampling_defaults: SamplingOverrides = SamplingOverrides()
    flash_attention: bool = False


def load_script(path: Path) -> FakeScript:
    """Reads a script file. Raises ModelFileError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FakeScript)
    except OSError as error:
        raise ModelFileError(f"cannot read the fake engine's script {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ModelFileError(f"the fake engine's script {path} is no such script: {error}") from error


class ScriptReader:
    """Answers which token a script wants next. A function of the lane's tokens alone, so that a resubmitted or a cut
    stream goes on as if nothing had happened."""

    def __init__(self, script: FakeScript) -> None:
        self._script = script
        self._replies = tuple(
            (reply.when, None if reply.text is None else (*encode_with_markers(reply.text), _END))
            for reply in script.replies
        )

    def next_token(self, tokens: list[int]) -> int | None:
        """The scripted token behind ``tokens``, or ``None`` for babble."""
        if not self._replies and self._script.babble_tokens is None:
            return None
        opening = _last_index(tokens, _ASSISTANT_HEADER)
        if opening is None:
            reply, said = self._raw_reply(tokens)
        else:
            begin = opening + len(_ASSISTANT_HEADER)
            user = _last_index(tokens[:opening], _USER_HEADER) or 0
            reply, said = self._find(tokens[user:opening]), len(tokens) - begin
        if reply is not None:
            return reply[min(said, len(reply) - 1)]
        limit = self._script.babble_tokens
        return _END if limit is not None and opening is not None and said >= limit else None

    def _find(self, tokens: list[int]) -> tuple[int, ...] | None:
        text = _text(tokens)
        return next((reply for when, reply in self._replies if when is None or when in text), None)

    def _raw_reply(self, tokens: list[int]) -> tuple[tuple[int, ...] | None, int]:
        """With no turns there is no telling where the prompt ended: go on behind the longest overlap with the reply."""
        recent = tokens[-_RAW_LOOKBACK_TOKENS:]
        reply = self._find(recent)
        if reply is None:
            return None, 0
        longest = min(len(reply), len(recent))
        return reply, next((n for n in range(longest, 0, -1) if tuple(recent[-n:]) == reply[:n]), 0)


def _text(tokens: list[int]) -> str:
    """Without what images left there."""
    return b"".join(piece(token) for token in tokens if token >= 0).decode(errors="replace")


def _last_index(tokens: list[int], pattern: tuple[int, ...]) -> int | None:
    head = pattern[0]
    for index in range(len(tokens) - len(pattern), -1, -1):
        if tokens[index] == head and tuple(tokens[index : index + len(pattern)]) == pattern:
            return index
    return None
