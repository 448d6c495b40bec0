"""A tier of the prefix cache as the daemon knows it: whose prefixes it holds, and how long they are. Pure."""

from array import array
from collections.abc import Collection, Iterable
from itertools import islice
from typing import TypeVar

from superfluid.domain.statistics import KeptPrefix
from superfluid.kvfiles.names import prefix_digests
from superfluid.worker.prefix_marks import Mark

_K = TypeVar("_K")


class PrefixBook:
    """Prefixes by number. Those of sessions that were erased are not taken in again."""

    def __init__(self) -> None:
        self._prefixes: dict[int, KeptPrefix] = {}
        self._marks: dict[int, tuple[Mark, ...]] = {}
        self._of_session: dict[int, set[int]] = {}
        self._by_mark: dict[Mark, set[int]] = {}
        self._erased: set[int] = set()

    def __len__(self) -> int:
        return len(self._prefixes)

    def add(self, number: int, prefix: KeptPrefix, marks: Iterable[Mark]) -> None:
        """``marks`` are where it can be compared with other streams."""
        if prefix.session in self._erased:
            return
        self._prefixes[number] = prefix
        self._marks[number] = tuple(marks)
        for mark in self._marks[number]:
            self._by_mark.setdefault(mark, set()).add(number)
        if prefix.session is not None:
            self._of_session.setdefault(prefix.session, set()).add(number)

    def remove(self, number: int) -> None:
        """Unknown numbers are ignored."""
        prefix = self._prefixes.pop(number, None)
        if prefix is None:
            return
        for mark in self._marks.pop(number):
            _discard(self._by_mark, mark, number)
        if prefix.session is not None:
            _discard(self._of_session, prefix.session, number)

    def get(self, number: int) -> KeptPrefix | None:
        return self._prefixes.get(number)

    def clear(self) -> None:
        """Whoever had them is gone."""
        self._prefixes.clear()
        self._marks.clear()
        self._of_session.clear()
        self._by_mark.clear()

    def forget(self, sessions: Collection[int]) -> None:
        """They are being erased: nobody hears of them any more, whatever is still reported."""
        self._erased.update(sessions)
        for session in sessions:
            for number in list(self._of_session.get(session, ())):
                self.remove(number)

    def covered_tokens(self, session: int, tokens: "array[int]", *, can_truncate: bool = True) -> int:
        """How much of the session's input there is, whosever it is. Takes time in proportion to it.

        ``can_truncate``: a state that holds more can be cut.
        """
        own = [self._prefixes[number].tokens for number in self._of_session.get(session, ())]
        length = len(tokens)
        usable = [held if held <= length else length for held in own if held <= length or can_truncate]
        return max(max(usable, default=0), self.prefix_tokens(tokens))

    def prefix_tokens(self, tokens: "array[int]") -> int:
        """The longest mark that lies within this stream. Takes time in proportion to it."""
        packed = memoryview(tokens).cast("B")
        lengths = sorted({length for length, _ in self._by_mark if length <= len(tokens)})
        found = 0
        for mark in prefix_digests(packed, lengths):
            if mark in self._by_mark:
                found = mark[0]
        return found

    def newest(self, count: int) -> tuple[KeptPrefix, ...]:
        """At most so many, the newest first."""
        return tuple(islice(reversed(self._prefixes.values()), count))


def _discard(numbers: dict[_K, set[int]], key: _K, number: int) -> None:
    numbers[key].discard(number)
    if not numbers[key]:
        del numbers[key]
