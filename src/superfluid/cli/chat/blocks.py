"""Cuts a growing Markdown text into blocks: what is in a finished one looks the same whatever follows. Pure."""

import itertools

from markdown_it import MarkdownIt
from markdown_it.token import Token


def parser() -> MarkdownIt:
    """As models write: tables and strikethrough. What would vanish (HTML, definitions of links) is text."""
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")


def split_blocks(text: str) -> list[str]:
    """The text in pieces, one a block; together they are the text. There are no carriage returns in it.

    All but the last are finished. That one is not: a paragraph may go on, or become a heading.
    """
    starts = [token.map[0] for token in parser().parse(text) if token.map is not None and _opens_block(token)]
    lines = text.split("\n")
    bounds = [0, *starts[1:], len(lines)]
    pieces = ["\n".join(lines[first:end]) for first, end in itertools.pairwise(bounds)]
    return [piece + "\n" for piece in pieces[:-1]] + pieces[-1:]


def _opens_block(token: Token) -> bool:
    return token.level == 0 and token.nesting >= 0
