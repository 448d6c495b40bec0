import pytest

from superfluid.cli.chat.blocks import split_blocks


@pytest.mark.parametrize(
    "pieces",
    [
        ["hello"],
        ["hello\n\n", "wor"],
        ["# head\n", "text"],
        ["```py\na\n\nb\n"],
        ["```py\na\n```\n", "x"],
        ["- a\n- b\n\n- c"],
        ["- a\n\n", "para\n\n", "1. x"],
        ["a\n\n", "| a | b |\n|---|---|\n| 1 "],
        ["> q\n\n", "x"],
        ["a\u2028b\n\n", "c"],
        ["---\n", "x"],
        [""],
        ["\n\n"],
        ["[a]: http://x\n\n", "hi"],
        ["<div>\n\n", "x\n\n", "</div>"],
    ],
)
def test_text_is_cut_between_its_blocks(pieces: list[str]) -> None:
    assert split_blocks("".join(pieces)) == pieces


TEXT = (
    "# A\nb\nc\n\n```py\nx = 1\n\ny = 2\n```\n- one\n- two\n\n"
    "  more\n\n1. a\n2. b\n\n> quote\n\n| a |\n|---|\n| 1 |\n\nend"
)


@pytest.mark.parametrize("length", range(len(TEXT) + 1))
def test_finished_blocks_stay_the_same_as_the_text_grows(length: int) -> None:
    finished = split_blocks(TEXT[:length])[:-1]
    assert split_blocks(TEXT)[: len(finished)] == finished
