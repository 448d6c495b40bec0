"""What the rest of the daemon needs of text: a vocabulary and a chat codec. ``tests`` hold both tokenizers to it."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from superfluid.domain.request import ChatPrompt


class InfillMarkers(Struct, frozen=True):
    """The tokens before a prefix, before a suffix, and before what belongs between them."""

    prefix: int
    suffix: int
    middle: int


class Tokenizer(Protocol):
    """A model's vocabulary. Thread-safe; ``encode`` is CPU work that does not belong on the event loop."""

    @property
    def vocabulary_tokens(self) -> int: ...

    @property
    def end_of_generation(self) -> frozenset[int]: ...

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text of every token that is a marker and not text (control and user-defined), to its id."""
        ...

    @property
    def infill_markers(self) -> InfillMarkers | None:
        """``None`` if the model was not made to fill in the middle."""
        ...

    def encode_text(self, text: str, *, is_start: bool = False) -> list[int]:
        """Tokens of ordinary text: nothing in it, whatever it looks like, becomes a marker.

        ``is_start`` adds what the vocabulary puts at the beginning of a stream (BOS, a space), if anything.
        """
        ...

    def encode_template(self, text: str, *, is_start: bool = False) -> list[int]:
        """Tokens of trusted template text: markers in it become their special tokens."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes the token stands for; of a marker, its text. Bytes, since a token can end inside a character."""
        ...


class TemplateSource(Struct, frozen=True):
    """What a model file says of its chat template: the texts of both variants, and of the tokens templates may name."""

    default: str | None = None
    tool_use: str | None = None
    bos_text: str = ""
    eos_text: str = ""


class ModelVocabulary(Tokenizer, Protocol):
    """What the codec needs of a vocabulary beyond what everybody may use."""

    @property
    def template_source(self) -> TemplateSource: ...

    @property
    def control_tokens(self) -> frozenset[int]:
        """Markers that are never shown to a reader (control tokens; user-defined ones are ordinary output)."""
        ...

    @property
    def strips_text_before(self) -> frozenset[int]:
        """Markers that swallow the whitespace before them."""
        ...

    @property
    def strips_text_after(self) -> frozenset[int]:
        """Markers that swallow the whitespace behind them."""
        ...

    def encode_fragment(self, text: str, *, follows_marker: bool) -> list[int]:
        """As ``encode_text`` for a piece from the middle of a stream. Some vocabularies put a space behind a marker."""
        ...


class Rendered(Struct, frozen=True):
    """A rendered conversation. ``message_ends[i]`` is where message i's span ends in ``tokens``; what follows the last
    is the assistant header, and what the reply begins with already. Ends are equal to the last one if the template does
    not render message by message."""

    tokens: list[int]
    message_ends: list[int]


class ChatCodec(Protocol):
    """The model's way of writing conversations. ``render`` is CPU work with a deadline: not on the event loop."""

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def template_text(self) -> str | None: ...

    @property
    def knows_reasoning(self) -> bool:
        """Whether the vocabulary has markers around reasoning, so that replies can be told apart from it."""
        ...

    @property
    def shows_tools(self) -> bool:
        """Whether the template has a place for the tools that a request declares."""
        ...

    @property
    def is_append_stable(self) -> bool:
        """Whether rendering one more turn always extends the rendering before it (found by probes at load)."""
        ...

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Raises TemplateRefusedError if the template refuses, fails or takes too long; UnsupportedInputError if the
        model has no chat template; ContextLengthExceededError if the text cannot fit the window, however it is
        tokenized."""
        ...

    def reply_parser(self, *, parse_tools: bool, opening: Sequence[int] = ()) -> "ReplyParser":
        """A parser for one reply. ``opening`` is the end of the prompt: it tells whether reasoning is already open."""
        ...


class Run(Struct, frozen=True):
    """A run of decoded text on a channel (numbers of ``domain.reply.Channel``), markers removed.

    ``is_closed`` marks the run at which a block (reasoning, tool call) ended; a block that the reply's end cuts off is
    not closed. ``raw`` of a tool-call block that ended either way is its whole text. ``tokens`` counts the tokens that
    belong to the run, markers included: over a reply, the runs' counts add up to what was fed.
    """

    channel: int
    text: str
    is_closed: bool = False
    raw: str = ""
    tokens: int = 0


class ReplyParser(Protocol):
    """Splits one reply's tokens into runs, incrementally. Not thread-safe; cheap enough for the event loop."""

    @property
    def tool_call_markers(self) -> tuple[str, str] | None:
        """The texts around a tool call, or ``None`` if no run will be on that channel."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether the newest token ended inside a character, whose text comes later."""
        ...

    def feed(self, tokens: Sequence[int]) -> list[Run]: ...

    def finish(self) -> list[Run]:
        """What was held back (an incomplete character becomes U+FFFD; an open block is closed)."""
        ...


class TurnCodec(Protocol):
    """Writes single turns, for sessions that grow message by message. CPU work: not on the event loop.

    All of it is derived from the model's template once, at load, by rendering probes. Client text can never forge a
    marker.
    """

    @property
    def has_turns(self) -> bool:
        """Whether the template writes a conversation turn by turn. If not, the methods below raise
        UnsupportedInputError."""
        ...

    @property
    def identity(self) -> bytes:
        """Bytes that differ whenever the codec would write the same conversation in other tokens."""
        ...

    def prologue(self, role: int) -> list[int]:
        """What comes before a session's first turn if that turn has ``role``: BOS, the template's default system
        turn."""
        ...

    def separator(self) -> list[int]:
        """What comes between a generated turn's end token and the next turn."""
        ...

    def turn(self, role: int, text: str) -> list[int]:
        """A whole turn: header, text, end. ``role`` is a ``domain.events.TurnRole`` other than TOOL."""
        ...

    def turn_around(self, role: int, pre_text: str, post_text: str) -> tuple[list[int], list[int]]:
        """A whole turn with a gap between two texts, which something else than text will fill: the tokens before the
        gap, and behind it."""
        ...

    def tool_result(self, text: str, *, name: str) -> list[int]:
        """A turn that answers a call of ``name``."""
        ...

    def system_turn(self, text: str | None, tools: Sequence[dict[str, Any]]) -> list[int]:
        """A session's first turn, declaring ``tools`` (OpenAI function tools), prologue included."""
        ...

    def opener(self) -> list[int]:
        """The header that opens an assistant turn."""
        ...
