"""The loaded model's text, as sessions need it. Runs in the daemon."""

from collections.abc import Sequence
from typing import Any

from superfluid.chat.interface import ChatCodec, Tokenizer, TurnCodec
from superfluid.domain.behavior import behavior_fingerprint
from superfluid.domain.events import TurnRole


class SessionText:
    """Vocabulary, codec and turn codec of one model.

    ``fingerprint`` is what a session's tokens depend on besides its messages: a number that survives restarts.
    """

    def __init__(self, tokenizer: Tokenizer, codec: ChatCodec, turns: TurnCodec) -> None:
        """Renders what is the same for every session: some milliseconds of CPU work."""
        self.tokenizer = tokenizer
        self.codec = codec
        self.turns: TurnCodec = RememberedTurns(turns) if turns.has_turns else turns
        self.fingerprint = behavior_fingerprint(turns.identity)


class RememberedTurns:
    """``TurnCodec`` that renders its constant parts once, so that they may be asked for on the event loop."""

    def __init__(self, turns: TurnCodec) -> None:
        self._turns = turns
        self._separator = turns.separator()
        self._opener = turns.opener()
        self._prologues = {int(role): turns.prologue(role) for role in TurnRole}

    @property
    def has_turns(self) -> bool:
        return self._turns.has_turns

    @property
    def identity(self) -> bytes:
        return self._turns.identity

    def prologue(self, role: int) -> list[int]:
        return self._prologues[role]

    def separator(self) -> list[int]:
        return self._separator

    def opener(self) -> list[int]:
        return self._opener

    def turn(self, role: int, text: str) -> list[int]:
        return self._turns.turn(role, text)

    def turn_around(self, role: int, pre_text: str, post_text: str) -> tuple[list[int], list[int]]:
        return self._turns.turn_around(role, pre_text, post_text)

    def tool_result(self, text: str, *, name: str) -> list[int]:
        return self._turns.tool_result(text, name=name)

    def system_turn(self, text: str | None, tools: Sequence[dict[str, Any]]) -> list[int]:
        return self._turns.system_turn(text, tools)
