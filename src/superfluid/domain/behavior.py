"""What decides a session's next tokens besides its own log: versions of the rules, and the digest over them. Pure.

Whoever changes a rule so that equal logs go on differently raises its version here, and sessions record a new
fingerprint at their next generation.
"""

import hashlib
from typing import Final

from superfluid.domain.events import VISIBILITY_VERSION

SAMPLING_VERSION: Final = 1
"""Of the draw: the order of penalties and cuts, and what a seed and a position give."""
GRAMMAR_VERSION: Final = 0
"""Of the rules that constrain a reply; 0 is that there are none."""
NO_SPECULATION: Final = "none"


def behavior_fingerprint(codec_identity: bytes, *, speculation: str = NO_SPECULATION) -> int:
    """A 64-bit number that changes with anything that may change what a log is continued by.

    ``codec_identity`` covers vocabulary, markers and template; ``speculation`` names what drafts tokens, if anything.
    """
    digest = hashlib.sha256(b"superfluid behavior 1")
    parts = (
        codec_identity,
        b"sampling %d" % SAMPLING_VERSION,
        b"blocks %d" % VISIBILITY_VERSION,
        b"grammar %d" % GRAMMAR_VERSION,
        b"speculation " + speculation.encode(),
    )
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest()[:8], "little")
