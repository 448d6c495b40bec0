"""Sessions as families: who was forked from whom, and how that is drawn. Pure."""

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from superfluid.cli.session.catalog import Row
from superfluid.cli.session.table import Line

MAX_HIDDEN_DEPTH = 12
"""From this depth on, the drawing is not indented further."""
MIN_FOLDED = 3
"""A row of forks without branches, titles or marks is folded if at least so many can be left out."""


class Glyphs(Struct, frozen=True):
    """What a tree is drawn with."""

    branch: str = "├─ "
    last: str = "└─ "
    pass_by: str = "│  "
    nothing: str = "   "
    folded: str = "⋮"


ASCII_GLYPHS = Glyphs(branch="|- ", last="`- ", pass_by="|  ", nothing="   ", folded=":")


class Forest:
    """Rows by their parents. A row whose parent is not among them is the root of a family."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {row.id: row for row in rows}
        self._children: dict[int, list[int]] = {}
        self.roots: list[int] = []
        for row in sorted(rows, key=lambda row: row.id):
            if row.parent in self.rows:
                self._children.setdefault(row.parent, []).append(row.id)
            else:
                self.roots.append(row.id)

    def children(self, session: int) -> Sequence[int]:
        return self._children.get(session, ())

    def descendants(self, session: int) -> list[int]:
        """All below it, parents before children."""
        found: list[int] = []
        waiting = list(reversed(self.children(session)))
        while waiting:
            current = waiting.pop()
            found.append(current)
            waiting += reversed(self.children(current))
        return found

    def root_of(self, session: int) -> int:
        """The oldest ancestor that is here."""
        while (parent := self.rows[session].parent) in self.rows:
            session = parent
        return session

    def newest_roots(self) -> list[int]:
        """Families, those with the newest member first."""
        newest = {root: max((root, *self.descendants(root))) for root in self.roots}
        return sorted(self.roots, key=lambda root: newest[root], reverse=True)


class _Place(Struct, frozen=True):
    """A session that is to be drawn: the drawing before it, and the one before what is below it."""

    session: int
    own: str
    below: str
    depth: int


def drawn_lines(
    forest: Forest, root: int, glyphs: Glyphs, *, is_folded: bool = True, kept: Collection[int] = ()
) -> Iterator[Line]:
    """One line a session of the family. ``kept`` are never folded away."""
    waiting = [_Place(root, "", "", 0)]
    while waiting:
        place = waiting.pop()
        yield Line(place.own, forest.rows[place.session])
        children = list(forest.children(place.session))
        if is_folded and len(children) == 1:
            hidden = _foldable(forest, children[0], kept)
            if len(hidden) >= MIN_FOLDED:
                text = f"{len(hidden)} forks, each of the one before"
                yield Line(place.below + glyphs.folded, None, text)
                children = list(forest.children(hidden[-1]))
        waiting += reversed(_places(place, children, glyphs))


def _foldable(forest: Forest, first: int, kept: Collection[int]) -> list[int]:
    """``first`` and its only descendants one after the other, up to but without the one at which that ends."""
    hidden: list[int] = []
    current = first
    while True:
        row, children = forest.rows[current], forest.children(current)
        if len(children) != 1 or row.title or row.is_archived or row.open_tool_calls or current in kept:
            return hidden
        hidden.append(current)
        current = children[0]


def _places(place: _Place, children: Sequence[int], glyphs: Glyphs) -> list[_Place]:
    if place.depth >= MAX_HIDDEN_DEPTH:
        return [_Place(child, place.own, place.below, place.depth + 1) for child in children]
    places = [
        _Place(child, place.below + glyphs.branch, place.below + glyphs.pass_by, place.depth + 1)
        for child in children[:-1]
    ]
    places += [
        _Place(child, place.below + glyphs.last, place.below + glyphs.nothing, place.depth + 1)
        for child in children[-1:]
    ]
    return places
