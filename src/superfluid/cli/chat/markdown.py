"""The model's Markdown with Rich: headings to the left, line breaks kept, what looks like HTML shown as it is."""

from typing import ClassVar

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax

from superfluid.cli.chat.blocks import parser


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _PlainCode(CodeBlock):
    """Without a background and a frame of blanks: it can be copied as it is."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip("\n"), self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True
        )


class ChatMarkdown(Markdown):
    """One or more blocks."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }

    def __init__(self, markup: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = markup
        self.parsed = parser().parse(markup)
        for token in self.parsed:
            for child in token.children or ():
                # Models break lines where they mean it.
                if child.type == "softbreak":
                    child.type = "hardbreak"
