"""Text from elsewhere (a model, another user) made safe to show in a terminal. Pure."""

import re

# Escape sequences begin with one of these; a tab and a line break are text. The last two ranges turn the direction of
# what follows, so that a line reads as something it is not.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LINE_BREAKS = re.compile(r"[\r\n\t]+")


def printable(text: str) -> str:
    """``text`` without what would steer the terminal; line breaks and tabs stay."""
    return _UNSHOWN.sub("", text)


def one_line(text: str) -> str:
    """``text`` as it fits into a line of a listing: line breaks and tabs are blanks."""
    return printable(_LINE_BREAKS.sub(" ", text))
