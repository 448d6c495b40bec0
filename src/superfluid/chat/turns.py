"""Single turns in the manner of a model's template, for sessions that grow message by message. Runs in the daemon, off
its event loop.

Every turn is cut out of a small conversation that the codec renders, so it gets the same guard, deadline and tokens as
any other.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from superfluid.chat.interface import ModelVocabulary
from superfluid.chat.rendering import GAP
from superfluid.chat.template import TemplateCodec
from superfluid.domain.events import TurnRole
from superfluid.domain.request import ChatPrompt, Message, Role, ToolCall
from superfluid.errors import SuperfluidError, TemplateRefusedError, UnsupportedInputError

_VERSION: Final = b"turns 2"
_GAP_SIGNS: Final = [chr(code) for code in range(0xE000, 0xF900)]
_PROBE: Final = "probe"
_QUESTION: Final = Message(role="user", content=_PROBE)
_ANSWER: Final = Message(role="assistant", content=_PROBE)
_TOOL_PREAMBLE: Final = (
    "You may call one or more of these functions. To call one, write a JSON object with its name and arguments between "
    "<tool_call> and </tool_call>.\n"
)


class TemplateTurns:
    """``TurnCodec`` over a template codec. Thread-safe."""

    def __init__(self, vocabulary: ModelVocabulary, codec: TemplateCodec) -> None:
        """Renders a few probes: some milliseconds of CPU work."""
        self._vocabulary = vocabulary
        self._codec = codec
        self.has_turns: bool = self._probe_turns()
        self.identity: bytes = self._digest()

    def prologue(self, role: int) -> list[int]:
        self._require_turns()
        tokens, ends = self._render(_QUESTION)
        if role == TurnRole.SYSTEM:
            bos = self._vocabulary.special_tokens.get(self._vocabulary.template_source.bos_text)
            return tokens[:1] if tokens[0] == bos and not self._turn_begins_with(bos) else []
        return tokens[: ends[0] - len(self._user_turn(_PROBE))]

    def separator(self) -> list[int]:
        self._require_turns()
        turn = self._assistant_turn(_PROBE)
        ends = [index for index, token in enumerate(turn) if token in self._vocabulary.end_of_generation]
        return turn[ends[-1] + 1 :] if ends else []

    def turn(self, role: int, text: str) -> list[int]:
        self._require_turns()
        return self._turn(role, text)

    def turn_around(self, role: int, pre_text: str, post_text: str) -> tuple[list[int], list[int]]:
        self._require_turns()
        source = self._vocabulary.template_source
        texts = (pre_text, post_text, source.default or "", source.tool_use or "")
        gap = next((sign for sign in _GAP_SIGNS if not any(sign in text for text in texts)), None)
        if gap is None:
            raise UnsupportedInputError("the text uses every private-use character there is")
        turn = self._turn(role, pre_text + gap + post_text, gap)
        if turn.count(GAP) != 1:
            raise UnsupportedInputError("this model's chat template does not keep a message's text in one piece")
        return turn[: turn.index(GAP)], turn[turn.index(GAP) + 1 :]

    def tool_result(self, text: str, *, name: str) -> list[int]:
        self._require_turns()
        call = ToolCall(id="call_1", name=name, arguments="{}")
        asked = Message(role="assistant", tool_calls=(call,))
        result = Message(role="tool", content=text, tool_call_id=call.id, name=name)
        try:
            return self._last_turn(_QUESTION, asked, result)
        except (UnsupportedInputError, TemplateRefusedError):
            # A template that knows no tools: the model is told what came out by the user.
            return self._user_turn(text)

    def system_turn(self, text: str | None, tools: Sequence[dict[str, Any]]) -> list[int]:
        self._require_turns()
        if not tools:
            return self._system_turn(text or "", ())
        declared = self._system_turn(text, tools)
        if all(_name_of(tool) in self._spell(declared) for tool in tools):
            return declared
        # A template that knows no tools, or declares them elsewhere: they are part of what the system says.
        listed = _TOOL_PREAMBLE + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        return self._system_turn(f"{text}\n\n{listed}" if text else listed, ())

    def opener(self) -> list[int]:
        self._require_turns()
        tokens, ends = self._render(_QUESTION)
        return tokens[ends[-1] :]

    # ---- with ``gap`` as in ``TemplateCodec.render``

    def _turn(self, role: int, text: str, gap: str = "") -> list[int]:
        if role == TurnRole.USER:
            return self._user_turn(text, gap)
        if role == TurnRole.ASSISTANT:
            return self._assistant_turn(text, gap)
        if role == TurnRole.SYSTEM:
            return self._system_turn(text, (), gap)[len(self.prologue(TurnRole.SYSTEM)) :]
        raise ValueError(f"a turn of role {role} is not text alone")

    def _user_turn(self, text: str, gap: str = "") -> list[int]:
        return self._last_turn(_QUESTION, _ANSWER, Message(role="user", content=text), gap=gap)

    def _assistant_turn(self, text: str, gap: str = "") -> list[int]:
        # Not as the last message: some templates write that one differently.
        tokens, ends = self._render(_QUESTION, Message(role="assistant", content=text), _QUESTION, gap=gap)
        return self._written(tokens[ends[0] : ends[1]])

    def _system_turn(self, text: str | None, tools: Sequence[dict[str, Any]], gap: str = "") -> list[int]:
        """A first turn, prologue included. Without ``text`` it holds the declarations alone."""
        if not self._codec.has_system_turn:
            raise UnsupportedInputError("this model's chat template has no system turn")
        if text is None:
            tokens, ends = self._render(_QUESTION, tools=tools)
            question = self._user_turn(_PROBE)
            first = tokens[: ends[0]]
            return first[: len(first) - len(question)] if first[-len(question) :] == question else []
        tokens, ends = self._render(Message(role="system", content=text), _QUESTION, tools=tools, gap=gap)
        return self._written(tokens[: ends[0]])

    def _last_turn(self, *messages: Message, gap: str = "") -> list[int]:
        tokens, ends = self._render(*messages, gap=gap)
        return self._written(tokens[ends[-2] : ends[-1]])

    def _render(
        self, *messages: Message, tools: Sequence[dict[str, Any]] = (), gap: str = ""
    ) -> tuple[list[int], list[int]]:
        rendered = self._codec.render(ChatPrompt(messages=messages, tools=tuple(tools)), gap=gap)
        return rendered.tokens, rendered.message_ends

    def _written(self, turn: list[int]) -> list[int]:
        if not turn:
            raise UnsupportedInputError("this model's chat template has no turn for that role", param="role")
        return turn

    def _turn_begins_with(self, token: int | None) -> bool:
        return self._user_turn(_PROBE)[0] == token

    def _spell(self, tokens: Sequence[int]) -> str:
        return b"".join(self._vocabulary.piece(token) for token in tokens).decode("utf-8", "replace")

    def _require_turns(self) -> None:
        if not self.has_turns:
            raise UnsupportedInputError("this model's chat template does not write a conversation turn by turn")

    def _probe_turns(self) -> bool:
        """Whether turns put together are what the template writes for the whole conversation."""
        if not self._codec.has_chat_template:
            return False
        talk = [Message(role=role, content=text) for role, text in _PROBE_TALK]
        self.has_turns = True
        try:
            whole, _ = self._render(*talk)
            parts = self.prologue(TurnRole.USER)
            for message in talk:
                write = self._user_turn if message.role == "user" else self._assistant_turn
                parts += write(message.content)
            return whole == parts + self.opener()
        except SuperfluidError:
            return False

    def _digest(self) -> bytes:
        source = self._vocabulary.template_source
        digest = hashlib.sha256(_VERSION)
        for text in (source.default, source.tool_use, source.bos_text, source.eos_text):
            digest.update(repr(text).encode())
        digest.update(repr(sorted(self._vocabulary.special_tokens.items())).encode())
        for token in range(self._vocabulary.vocabulary_tokens):
            piece = self._vocabulary.piece(token)
            digest.update(b"%d:%b" % (len(piece), piece))
        # Pieces do not tell how a text is cut into them.
        sample = self._vocabulary.encode_text("The quick brown fox, 12 345 déjà vu\n\n  x", is_start=True)
        digest.update(repr(sample).encode())
        return digest.digest()


_PROBE_TALK: Final[tuple[tuple[Role, str], ...]] = (("user", "one"), ("assistant", "two"), ("user", "three"))


def _name_of(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""
