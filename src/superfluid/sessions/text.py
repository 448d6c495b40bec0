"""The loaded model's text, as sessions need it. Runs in the daemon."""

import hashlib

from superfluid.chat.interface import ChatCodec, Tokenizer, TurnCodec

_DIGEST_VERSION = b"superfluid 1"


class SessionText:
    """Vocabulary, codec and turn codec of one model.

    ``fingerprint`` is what a session's tokens depend on besides its messages: a number that survives restarts.
    """

    def __init__(self, tokenizer: Tokenizer, codec: ChatCodec, turns: TurnCodec) -> None:
        self.tokenizer = tokenizer
        self.codec = codec
        self.turns = turns
        digest = hashlib.sha256(_DIGEST_VERSION + turns.identity).digest()
        self.fingerprint = int.from_bytes(digest[:8], "little")
