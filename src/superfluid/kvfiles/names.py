"""What a KV file is called. The name tells all that sweeping and erasing need, so that neither opens a file. Pure.

``<kind>-<key>-<tokens>-<owner>.kv``: ``s`` for a session's park or ``r`` for a request's prefix, the key's digest, the
tokens' digest, the owner's session id in hex (``none`` without one). A file being written has ``.<pid>.tmp`` behind it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from superfluid.domain.job import ParkKind

KV_DIRECTORY: Final = "kv"
"""Within the sessions directory."""
_TOKEN_BYTES: Final = 4
DIGEST_BYTES: Final = 16
_LETTERS: Final = {ParkKind.SESSION: "s", ParkKind.REQUEST: "r"}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}
_NAME: Final = re.compile(
    r"(?P<kind>[sr])-(?P<key>[0-9a-f]{16})-(?P<tokens>[0-9a-f]{32})-(?P<owner>[0-9a-f]{1,16}|none)\.kv"
    r"(?:\.(?P<writer>\d+)\.tmp)?"
)


class KvName(NamedTuple):
    """``writer`` is the process that is writing the file, ``None`` when it is done."""

    kind: ParkKind
    key: str
    tokens: str
    owner: int | None
    writer: int | None = None

    def __str__(self) -> str:
        owner = "none" if self.owner is None else f"{self.owner:x}"
        writer = "" if self.writer is None else f".{self.writer}.tmp"
        return f"{_LETTERS[self.kind]}-{self.key}-{self.tokens}-{owner}.kv{writer}"


def token_digest(packed: bytes | memoryview) -> bytes:
    """16 bytes that stand for token ids, which are packed as little-endian int32."""
    return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()


def prefix_digests(packed: memoryview, lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """``token_digest`` of the first tokens, for each of these lengths, which rise: in one walk."""
    running = hashlib.blake2b(digest_size=DIGEST_BYTES)
    done = 0
    for length in lengths:
        running.update(packed[_TOKEN_BYTES * done : _TOKEN_BYTES * length])
        done = length
        yield length, running.copy().digest()


def parse_name(name: str) -> KvName | None:
    """``None`` for a file that is not ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    owner, writer = match["owner"], match["writer"]
    return KvName(
        _KINDS[match["kind"]],
        match["key"],
        match["tokens"],
        None if owner == "none" else int(owner, 16),
        None if writer is None else int(writer),
    )
