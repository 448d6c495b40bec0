"""The index of KV files: which token streams are on the disk, by file id. Pure; lives in the worker.

It holds token ids and sizes. Names, threads and bytes are those of ``worker/parking.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from superfluid.domain.job import ParkKind
from superfluid.scheduling.token_tree import Tokens, TokenTree

_LOOKED_AT: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class KvFile:
    """A lane's state on the disk. ``owner`` is the session whose tokens they are."""

    file_id: int
    tokens: Tokens
    kind: ParkKind
    owner: int | None
    size_bytes: int

    @property
    def length(self) -> int:
        return len(self.tokens)


class KvIndex:
    """``is_nesting``: a state can be cut, so that a file serves every prefix of it."""

    def __init__(self, *, is_nesting: bool) -> None:
        self._is_nesting = is_nesting
        self._files: dict[int, KvFile] = {}
        self._tree = TokenTree()

    def __iter__(self) -> Iterator[KvFile]:
        return iter(self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, file_id: int) -> bool:
        return file_id in self._files

    def file(self, file_id: int) -> KvFile:
        """Raises KeyError."""
        return self._files[file_id]

    def add(self, file: KvFile) -> list[KvFile]:
        """Returns the files that nobody needs any more: earlier states of the same conversation."""
        passed, _, _ = self._tree.walk(file.tokens)
        self._files[file.file_id] = file
        self._tree.insert(file.tokens, file.file_id)
        return [old for key in passed if _is_superseded(old := self._files[key], file)]

    def discard(self, file_id: int) -> KvFile | None:
        file = self._files.pop(file_id, None)
        if file is not None:
            self._tree.remove(file_id)
        return file

    def matches(self, tokens: Tokens) -> list[tuple[KvFile, int]]:
        """Files worth a look, with the tokens each has in common with ``tokens``: those that lie wholly within it, and
        a short one of those that have most in common with it."""
        passed, length, reaching = self._tree.walk(tokens)
        found = [(file, file.length) for file in map(self._files.__getitem__, passed)]
        if length:
            looked_at = map(self._files.__getitem__, islice(reaching, _LOOKED_AT))
            best = min(looked_at, key=lambda file: (file.length, file.file_id))
            if best.length > length:
                found.append((best, length))
        return found

    def covered_tokens(self, tokens: Tokens) -> int:
        """The longest prefix of ``tokens`` that a lane could be given from the disk."""
        passed, length, _ = self._tree.walk(tokens)
        if self._is_nesting:
            return length
        return max((self._files[key].length for key in passed), default=0)

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong."""
        assert all(file.file_id == key and file.length > 0 for key, file in self._files.items())
        self._tree.check_integrity()
        assert len(self._tree) == len(self._files)


def _is_superseded(old: KvFile, new: KvFile) -> bool:
    """Another session's park stays: the session may go on from there, and the new file may be much longer."""
    is_same_session = old.owner is not None and old.owner == new.owner
    return is_same_session or (old.kind is ParkKind.REQUEST and new.kind is ParkKind.REQUEST)
