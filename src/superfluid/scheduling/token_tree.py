"""A radix tree over token streams: which stored streams share how much with a new one, in one walk. Pure."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

_PROBE_TOKENS: Final = 64


def common_prefix(left: Tokens, right: Tokens) -> int:
    """How many tokens both streams begin with."""
    length = min(len(left), len(right))
    probe = min(length, _PROBE_TOKENS)
    equal = _equal_tokens(left[:probe], right[:probe])
    if equal < probe or probe == length:
        return equal
    return _equal_tokens(left[:length], right[:length])


def _equal_tokens(left: Tokens, right: Tokens) -> int:
    if not len(left):
        return 0
    differs = left != right
    first = int(differs.argmax())
    return first if differs[first] else len(left)


class _Node:
    """Reached over ``edge``. ``keys`` are the streams that end here. Every node has a key or a child, but the root."""

    __slots__ = ("children", "depth", "edge", "keys", "parent")

    def __init__(self, parent: "_Node | None", edge: Tokens) -> None:
        self.parent = parent
        self.edge = edge
        self.depth: int = len(edge) + (parent.depth if parent is not None else 0)
        self.children: dict[int, _Node] = {}
        self.keys: list[int] = []


class TokenTree:
    """Maps streams, which it does not copy, to integer keys. Keys are unique; streams need not be."""

    def __init__(self) -> None:
        self._root = _Node(None, np.empty(0, np.int32))
        self._ends: dict[int, _Node] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def insert(self, tokens: Tokens, key: int) -> None:
        """``tokens`` must not be empty and must not change while the key is there."""
        assert len(tokens)
        assert key not in self._ends, "keys are used once"
        node = self._root
        while node.depth < len(tokens):
            rest = tokens[node.depth :]
            child = node.children.get(int(rest[0]))
            if child is None:
                child = node.children[int(rest[0])] = _Node(node, rest)
            else:
                equal = common_prefix(child.edge, rest)
                if equal < len(child.edge):
                    child = _split(child, equal)
            node = child
        node.keys.append(key)
        self._ends[key] = node

    def remove(self, key: int) -> None:
        """Raises KeyError. Nodes that have become mere joints stay until their branch goes."""
        node = self._ends.pop(key)
        node.keys.remove(key)
        while node.parent is not None and not node.keys and not node.children:
            del node.parent.children[int(node.edge[0])]
            node = node.parent

    def walk(self, tokens: Tokens) -> tuple[list[int], int, Iterator[int]]:
        """Follows ``tokens`` as far as any stored stream does. Returns the keys of the streams that are wholly on the
        way, how far it got, and (lazily, before the tree changes) the keys of all streams that share that much, those
        that end there included."""
        node = self._root
        passed: list[int] = []
        while node.depth < len(tokens):
            rest = tokens[node.depth :]
            child = node.children.get(int(rest[0]))
            if child is None:
                break
            equal = common_prefix(child.edge, rest)
            if equal < len(child.edge):
                return passed, node.depth + equal, _keys_below(child)
            node = child
            passed += node.keys
        return passed, node.depth, _keys_below(node)

    def extensions(self, key: int) -> bool:
        """Whether some other stream begins with all of this one."""
        node = self._ends[key]
        return bool(node.children) or len(node.keys) > 1

    def check_integrity(self) -> None:
        """Raises AssertionError if the tree is wrong."""
        ends = {key: node for node in _nodes(self._root) for key in node.keys}
        assert ends == self._ends
        for node in _nodes(self._root):
            assert node is self._root or node.keys or node.children
            for token, child in node.children.items():
                assert child.parent is node
                assert int(child.edge[0]) == token
                assert child.depth == node.depth + len(child.edge)


def _split(child: _Node, at: int) -> _Node:
    """Puts a node into ``child``'s edge, ``at`` tokens along it, and returns that."""
    parent = child.parent
    assert parent is not None
    joint = _Node(parent, child.edge[:at])
    parent.children[int(child.edge[0])] = joint
    child.edge = child.edge[at:]
    child.parent = joint
    joint.children[int(child.edge[0])] = child
    return joint


def _nodes(node: _Node) -> Iterator[_Node]:
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += node.children.values()


def _keys_below(node: _Node) -> Iterator[int]:
    for below in _nodes(node):
        yield from below.keys
