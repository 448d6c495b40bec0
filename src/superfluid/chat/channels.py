"""Splits a reply's tokens into text, reasoning and tool calls by marker tokens, and decodes them. Runs in the daemon.

A channel exists only if both of its markers are single tokens of the vocabulary: a model that spells ``<think>`` in
letters writes text. The runs carry what the model wrote between its markers, whitespace included; ``reply`` trims for
readers.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from superfluid.chat.detokenize import IncrementalDecoder
from superfluid.chat.interface import ModelVocabulary, Run
from superfluid.domain.reply import Channel

_MARKER_PAIRS: Final = (
    (Channel.REASONING, "<think>", "</think>"),
    (Channel.REASONING, "[THINK]", "[/THINK]"),
    (Channel.REASONING, "<seed:think>", "</seed:think>"),
    (Channel.REASONING, "<|START_THINKING|>", "<|END_THINKING|>"),
    (Channel.TOOL_CALL, "<tool_call>", "</tool_call>"),
)


class ChannelMarkers(NamedTuple):
    """The markers that a vocabulary has: ids that open a channel, ids that close one, and ids that never show."""

    opens: dict[int, Channel]
    closes: dict[int, Channel]
    hidden: frozenset[int]
    tool_call: tuple[str, str] | None


def find_channel_markers(vocabulary: ModelVocabulary) -> ChannelMarkers:
    special = vocabulary.special_tokens
    opens: dict[int, Channel] = {}
    closes: dict[int, Channel] = {}
    tool_call = None
    for channel, opening, closing in _MARKER_PAIRS:
        if opening in special and closing in special:
            opens[special[opening]] = channel
            closes[special[closing]] = channel
            if channel == Channel.TOOL_CALL:
                tool_call = (opening, closing)
    hidden = (vocabulary.control_tokens | vocabulary.end_of_generation) - opens.keys() - closes.keys()
    return ChannelMarkers(opens, closes, frozenset(hidden), tool_call)


class ChannelParser:
    """``ReplyParser`` by marker ids. Without ``parse_tools`` tool-call markers are text like any other.

    ``opening`` is the end of the prompt: a marker that the template wrote into the assistant header has opened a
    channel already. An opening marker belongs to the run it opens, a closing one to the run it closes.
    """

    def __init__(
        self,
        vocabulary: ModelVocabulary,
        markers: ChannelMarkers,
        *,
        parse_tools: bool,
        opening: Sequence[int] = (),
    ) -> None:
        self._piece = vocabulary.piece
        self._hidden = markers.hidden
        self.tool_call_markers: tuple[str, str] | None = markers.tool_call if parse_tools else None
        self._opens = {
            token: channel for token, channel in markers.opens.items() if parse_tools or channel != Channel.TOOL_CALL
        }
        self._closes = {
            token: channel for token, channel in markers.closes.items() if parse_tools or channel != Channel.TOOL_CALL
        }
        self._special = markers.hidden | self._opens.keys() | self._closes.keys()
        self._decoder = IncrementalDecoder()
        self._decode = self._decoder.feed
        self._raw: list[str] = []
        self._channel = self._open_channel(opening)

    @property
    def has_pending(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return self._decoder.has_pending

    def feed(self, tokens: Sequence[int]) -> list[Run]:
        if len(tokens) == 1 and tokens[0] not in self._special and self._channel != Channel.TOOL_CALL:
            # Nearly every tick of nearly every lane.
            return [Run(self._channel, self._decode(self._piece(tokens[0])), tokens=1)]
        runs: list[Run] = []
        data: list[bytes] = []
        count = 0
        for token in tokens:
            if token not in self._special:
                count += 1
                data.append(self._piece(token))
            elif (opened := self._opens.get(token)) is not None and self._channel != Channel.TOOL_CALL:
                if count or self._decoder.has_pending:
                    self._add_run(runs, data, count, is_end=True)
                self._channel = opened
                data, count = [], 1
            elif self._closes.get(token) == self._channel:
                self._add_run(runs, data, count + 1, is_end=True, is_closed=True)
                self._channel = Channel.TEXT
                data, count = [], 0
            else:
                count += 1
                data.append(self._stray_text(token))
        if count:
            self._add_run(runs, data, count)
        return runs

    def finish(self) -> list[Run]:
        rest = self._decoder.finish()
        if self._channel != Channel.TOOL_CALL:
            return [Run(self._channel, rest)] if rest else []
        self._raw.append(rest)
        return [Run(Channel.TOOL_CALL, rest, raw=self._take_raw())]

    def _add_run(
        self,
        runs: list[Run],
        data: list[bytes],
        count: int,
        *,
        is_end: bool = False,
        is_closed: bool = False,
    ) -> None:
        text = self._decode(b"".join(data))
        if is_end:
            text += self._decoder.finish()
        raw = ""
        if self._channel == Channel.TOOL_CALL:
            self._raw.append(text)
            raw = self._take_raw() if is_closed else ""
        runs.append(Run(self._channel, text, is_closed=is_closed, raw=raw, tokens=count))

    def _take_raw(self) -> str:
        raw = "".join(self._raw)
        self._raw.clear()
        return raw

    def _stray_text(self, token: int) -> bytes:
        """A marker where it means nothing: a channel marker inside a tool call is text there, any other is dropped."""
        is_quoted = self._channel == Channel.TOOL_CALL and token not in self._hidden
        return self._piece(token) if is_quoted else b""

    def _open_channel(self, opening: Sequence[int]) -> Channel:
        for token in reversed(opening):
            if token in self._opens:
                return self._opens[token]
            if token in self._closes:
                break
        return Channel.TEXT
