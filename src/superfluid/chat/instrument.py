"""Rewrites a parsed chat template so that a rendering can be stopped and shows where each message begins. Runs in the
daemon.

Pure but for the calls it plants: ``tick``, ``begin_turn``, ``end_turns`` and ``concatenate`` of the environment.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import Environment, nodes
from jinja2.visitor import NodeTransformer


class TurnMarks:
    """Marks to be planted into one rendering: ``message_ids`` maps the identity of a message's dict to its index,
    ``sign`` is a character that occurs in no input."""

    def __init__(self, message_ids: Mapping[int, int], sign: str) -> None:
        self._message_ids = message_ids
        self._sign = sign
        self._running: set[int] = set()

    def begin(self, loop: int, item: object) -> str:
        index = self._message_ids.get(id(item))
        if index is None:
            return ""
        self._running.add(loop)
        return f"{self._sign}{loop}:{index}{self._sign}"

    def end(self, loop: int) -> str:
        if loop not in self._running:
            return ""
        self._running.discard(loop)
        return f"{self._sign}{loop}:{self._sign}"

    def read(self, rendering: str) -> "MarkedText":
        """Takes the marks out again."""
        pieces: list[str] = []
        length = 0
        start = 0
        loops: dict[int, _Loop] = {}
        for match in re.finditer(f"{self._sign}(\\d+):(\\d*){self._sign}", rendering):
            piece = rendering[start : match.start()]
            pieces.append(piece)
            length += len(piece)
            start = match.end()
            loop = loops.setdefault(int(match[1]), _Loop({}, 0))
            if match[2]:
                loop.starts[int(match[2])] = length
            loops[int(match[1])] = loop._replace(end=length)
        pieces.append(rendering[start:])
        # Templates also loop to look for something. The loop that wrote the turns is the one that wrote the most.
        loop = max(loops.values(), key=_Loop.written, default=_Loop({}, 0))
        return MarkedText("".join(pieces), loop.starts, loop.end)


class _Loop(NamedTuple):
    starts: dict[int, int]
    end: int

    def written(self) -> int:
        return self.end - min(self.starts.values(), default=self.end)


class MarkedText(NamedTuple):
    """A rendering without its marks. ``starts`` has, for each message that the turn loop visited, where its turn
    begins; ``end`` is where the loop ended. Without such a loop both are empty."""

    text: str
    starts: dict[int, int]
    end: int

    def message_ends(self, count: int) -> list[int] | None:
        """Where each of ``count`` messages ends: where the next begins that was seen. ``None`` if they are not in
        order."""
        if not self.starts:
            return None
        ends = [self.end] * count
        for index in range(count - 2, -1, -1):
            ends[index] = self.starts.get(index + 1, ends[index + 1])
        return ends if ends == sorted(ends) else None


def instrument(template: nodes.Template, environment: Environment) -> nodes.Template:
    """Changes ``template`` in place and returns it."""
    _Instrumenter().visit(template)
    template.set_environment(environment)
    return template


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


class _Instrumenter(NodeTransformer):
    """Marks are written by outermost loops only, and never inside a captured block, whose text the template may go on
    to compare."""

    def __init__(self) -> None:
        self._depth = 0
        self._loops = 0

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802 - named by Jinja
        is_marked = self._depth == 0
        self._enter(node)
        if node.test is not None:
            node.test = nodes.And(_call("tick", []), node.test)
        if not is_marked or not isinstance(node.target, nodes.Name):
            node.body.insert(0, nodes.ExprStmt(_call("tick", [])))
            return node.set_lineno(node.lineno)
        self._loops += 1
        loop = nodes.Const(self._loops)
        item = nodes.Name(node.target.name, "load")
        node.body.insert(0, nodes.Output([_call("begin_turn", [loop, item])]))
        return [
            node.set_lineno(node.lineno),
            nodes.Output([_call("end_turns", [nodes.Const(self._loops)])]).set_lineno(node.lineno),
        ]

    def visit_Macro(self, node: nodes.Macro) -> Any:  # noqa: N802
        self._enter(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [])))
        return node.set_lineno(node.lineno)

    def visit_CallBlock(self, node: nodes.CallBlock) -> Any:  # noqa: N802
        self._enter(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [])))
        return node.set_lineno(node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> Any:  # noqa: N802
        return self._enter(node)

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> Any:  # noqa: N802
        return self._enter(node)

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenate", list(node.nodes)).set_lineno(node.lineno)

    def _enter(self, node: nodes.Node) -> nodes.Node:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node
