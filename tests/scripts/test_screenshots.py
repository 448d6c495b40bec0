import re
from pathlib import Path

from scripts.screenshots import pictures

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"


def text_of(svg: str) -> list[str]:
    """The words of a picture, in their order."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_pictures_in_the_documentation_are_what_the_script_draws() -> None:
    for name, svg in pictures().items():
        words = text_of(svg)
        assert len(words) > 20
        assert text_of((IMAGES / name).read_text()) == words, f"{name} is old: run scripts/screenshots.py docs/images"
