"""The fake engine's vocabulary: one token a byte, then the markers of ChatML, thinking, tool calls and infilling.

Imports nothing heavy, so that the daemon's fake tokenizer shares it with the engine in the worker.
"""

from typing import Final

BYTE_TOKENS: Final = 256

END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"

SPECIAL_TOKENS: Final = (
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
)
"""Marker texts in the order of their ids; the first has id ``BYTE_TOKENS``."""

SPECIAL_IDS: Final = {text: BYTE_TOKENS + index for index, text in enumerate(SPECIAL_TOKENS)}
VOCABULARY_TOKENS: Final = BYTE_TOKENS + len(SPECIAL_TOKENS)
END_OF_GENERATION: Final = frozenset({SPECIAL_IDS[END_OF_TEXT], SPECIAL_IDS[TURN_END]})


def encode_plain(text: str) -> list[int]:
    """One token per UTF-8 byte: nothing in ``text`` becomes a marker."""
    return list(text.encode())


def encode_with_markers(text: str) -> list[int]:
    """As ``encode_plain``, but each marker text becomes its one token (no marker is a prefix of another)."""
    tokens: list[int] = []
    start = 0
    position = text.find("<")
    while position >= 0:
        marker = next((marker for marker in SPECIAL_TOKENS if text.startswith(marker, position)), None)
        if marker is None:
            position = text.find("<", position + 1)
            continue
        tokens += encode_plain(text[start:position])
        tokens.append(SPECIAL_IDS[marker])
        start = position + len(marker)
        position = text.find("<", start)
    return tokens + encode_plain(text[start:])


def piece(token: int) -> bytes:
    """The bytes of ``token``; of a marker, its text. Raises IndexError if there is no such token."""
    if 0 <= token < BYTE_TOKENS:
        return bytes((token,))
    if token < 0:
        raise IndexError(token)
    return SPECIAL_TOKENS[token - BYTE_TOKENS].encode()
