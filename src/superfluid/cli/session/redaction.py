"""Takes what looks like a credential out of exported text. Pure.

It knows a handful of shapes: a net under somebody who exports content on purpose, not a promise that none is left.
"""

import re

REDACTED = "[REDACTED]"
PEM_STUB = "[REDACTED PEM BLOCK]"
TRUNCATED = "…[truncated]"
MAX_CONTENT_BYTES = 65_536

_KEY_MARK = "PRIVATE KEY-----"
_WORD = re.compile(r"\S+")
_RUN = re.compile(r"[A-Za-z0-9_-]+")
_EDGES = re.compile(r"^[^A-Za-z0-9_-]+|[^A-Za-z0-9_-]+$")
_PEM_BLOCK = re.compile(r"-----BEGIN [^\n-]*-----.*?-----END [^\n-]*-----", re.DOTALL)
_CUT_PEM_KEY = re.compile(r"-----BEGIN [^\n-]*PRIVATE KEY-----.*\Z", re.DOTALL)


def redact(text: str) -> str:
    """``text`` with credentials replaced, and cut to ``MAX_CONTENT_BYTES`` (the mark of the cut comes on top)."""
    hidden = _PEM_BLOCK.sub(PEM_STUB, text)
    hidden = _CUT_PEM_KEY.sub(PEM_STUB, hidden)
    hidden = hidden.replace(_KEY_MARK, _KEY_MARK + REDACTED)
    hidden = _WORD.sub(_redact_word, hidden)
    encoded = hidden.encode(errors="replace")
    if len(encoded) <= MAX_CONTENT_BYTES:
        return hidden
    return encoded[:MAX_CONTENT_BYTES].decode(errors="ignore") + TRUNCATED


def _redact_word(found: re.Match[str]) -> str:
    """A word that is a credential goes whole, punctuation included; one that holds one, such as JSON, in that part."""
    word = found[0]
    if is_credential(_EDGES.sub("", word)):
        return REDACTED
    return _RUN.sub(lambda run: REDACTED if is_credential(run[0]) else run[0], word)


def is_credential(word: str) -> bool:
    """Whether a word has the shape of an OpenAI, AWS, GitHub, Slack or Google key."""
    length = len(word)
    return (
        (word.startswith("sk-") and length >= 24)
        or (word.startswith("AKIA") and length == 20 and re.fullmatch(r"[A-Z0-9]+", word) is not None)
        or (word.startswith("ghp_") and length >= 36)
        or (word.startswith("xox") and word[4:5] == "-" and length >= 24)
        or (word.startswith("AIza") and length == 39)
    )
