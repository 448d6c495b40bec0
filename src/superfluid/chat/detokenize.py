"""Bytes of tokens to text, piece by piece: a token can end inside a character. Pure; runs in the daemon."""

import codecs


class IncrementalDecoder:
    """UTF-8 with replacement: what has been handed out equals the whole decoding so far, less an unfinished
    character."""

    __slots__ = ("_decode", "_decoder")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decode = self._decoder.decode

    def feed(self, data: bytes) -> str:
        """The text that ``data`` completes. Invalid bytes become U+FFFD."""
        return self._decode(data)

    @property
    def has_pending(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """An unfinished character becomes U+FFFD. The decoder is then as new."""
        text = self._decode(b"", True)
        self._decoder.reset()
        return text
