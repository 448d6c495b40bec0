"""Prompts that ask a model for what belongs between two texts (fill-in-the-middle). Pure; CPU work off the event loop.

Neither text can forge a marker: they are encoded as ordinary text, and only what is put around them is special.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from superfluid.chat.interface import InfillMarkers, Tokenizer

_SUFFIX_SHARE: Final = 4
_CHARACTERS_A_TOKEN: Final = 8

_KNOWN_MARKERS: Final[tuple[tuple[str, str, str], ...]] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""The texts that models have before the prefix, the suffix and the middle."""


def known_infill_markers(special_tokens: Mapping[str, int]) -> InfillMarkers | None:
    """The markers by their texts, for a vocabulary that does not say which they are."""
    for texts in _KNOWN_MARKERS:
        if all(text in special_tokens for text in texts):
            prefix, suffix, middle = (special_tokens[text] for text in texts)
            return InfillMarkers(prefix, suffix, middle)
    return None


class InfillRoom(Struct, frozen=True):
    """How the window is shared between prompt and completion."""

    window_tokens: int
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """What the prompt may have: the window less the completion, for which up to half of it is kept."""
        return self.window_tokens - max(1, min(self.max_tokens, self.window_tokens // 2))


def infill_prompt(
    tokenizer: Tokenizer,
    markers: InfillMarkers,
    prefix: str,
    suffix: str,
    *,
    is_suffix_first: bool,
    room: int,
) -> list[int]:
    """At most ``room`` tokens: both texts behind their markers, and last the marker of what is wanted.

    Where the texts are too long, the ends that are far from the gap are left out: the prefix keeps three quarters of
    the room and the suffix one, and either takes what the other leaves over.
    """
    start = tokenizer.encode_text("", is_start=True)
    room -= len(start) + 3
    before = _last_tokens(tokenizer, prefix, room)
    behind = _first_tokens(tokenizer, suffix, room)
    if len(before) + len(behind) > room:
        behind = behind[: max(room // _SUFFIX_SHARE, room - len(before))]
        before = before[len(before) - min(len(before), room - len(behind)) :]
    first, second = [markers.prefix, *before], [markers.suffix, *behind]
    if is_suffix_first:
        first, second = second, first
    return [*start, *first, *second, markers.middle]


def _last_tokens(tokenizer: Tokenizer, text: str, count: int) -> Sequence[int]:
    """The last ``count`` tokens of ``text``; only its end is encoded, however long it is."""
    size = max(1, count * _CHARACTERS_A_TOKEN)
    while True:
        tokens = tokenizer.encode_text(text[-size:])
        if len(tokens) > count or size >= len(text):
            return tokens[max(0, len(tokens) - count) :]
        size *= 2


def _first_tokens(tokenizer: Tokenizer, text: str, count: int) -> Sequence[int]:
    size = max(1, count * _CHARACTERS_A_TOKEN)
    while True:
        tokens = tokenizer.encode_text(text[:size])
        if len(tokens) > count or size >= len(text):
            return tokens[:count]
        size *= 2
