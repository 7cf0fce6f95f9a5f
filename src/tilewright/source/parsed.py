"""The tree of a text, with the places and parents of its nodes.

Most questions are about one function of a long file. So each top-level statement is walked, located and formatted only
when something in it is asked for, and only once.
"""

from __future__ import annotations

import ast
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

Node = TypeVar("Node", bound=cst.CSTNode)
Place = tuple[int, int]
"""A line, from 1, and a column, from 0."""


class _Order(cst.CSTVisitor):
    """Notes the fields of a node in the order of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, None] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        return False

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        self.fields[attribute] = None


_ORDERS: dict[type[cst.CSTNode], tuple[str, ...] | None] = {}
"""The fields of each class of nodes in the order of the text. None if libcst visits a field only where it is set."""


def children(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """Returns what `CSTNode.children` returns, in a fifth of the time: libcst makes a new node for each list."""
    kind = type(node)
    if kind not in _ORDERS:
        order = _Order()
        node._visit_and_replace_children(order)
        _ORDERS[kind] = None if hasattr(node, "format_spec") else tuple(order.fields)
    if (fields := _ORDERS[kind]) is None:
        return node.children
    found: list[cst.CSTNode] = []
    for field in fields:
        value = getattr(node, field)
        if isinstance(value, (tuple, list)):
            found += value
        elif isinstance(value, cst.CSTNode):
            found.append(value)
    return found


class TopLevel:
    """A top-level statement with all nodes below it, or the comments at the start or at the end of a file."""

    def __init__(self, module: cst.Module, roots: Iterable[cst.CSTNode], line: int | None) -> None:
        """line: where the statement itself begins, below comments and decorators; None if it is not known."""
        self.module, self.roots, self.line = module, list(roots), line
        self.nodes: list[cst.CSTNode] = []
        self.reach: dict[cst.CSTNode, tuple[int, int]] = {}
        """For each node, the slice of ``nodes`` that holds its subtree."""
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._kinds: dict[type[cst.CSTNode], Any] = {}
        for root in self.roots:
            self.parents[root] = module
            self._walk(root)

    def _walk(self, node: cst.CSTNode) -> None:
        start = len(self.nodes)
        self.nodes.append(node)
        for child in children(node):
            self.parents[child] = node
            self._walk(child)
        self.reach[node] = (start, len(self.nodes))

    def every(self, kind: type[Node], inside: cst.CSTNode | None = None) -> list[Node]:
        """Returns the nodes of one class in the order of the text, below ``inside`` or all."""
        known: tuple[list[int], list[Node]] | None = self._kinds.get(kind)
        if known is None:
            found = [(place, node) for place, node in enumerate(self.nodes) if isinstance(node, kind)]
            known = self._kinds[kind] = [place for place, _ in found], [node for _, node in found]
        places, nodes = known
        if inside is None:
            return nodes
        start, end = self.reach[inside]
        return nodes[bisect_left(places, start) : bisect_left(places, end)]

    @cached_property
    def places(self) -> Mapping[cst.CSTNode, Place] | None:
        """Where the nodes of a statement begin; None if its line is not known."""
        if self.line is None:
            return None
        alone = self.module.with_changes(header=(), body=self.roots, footer=())
        found = MetadataWrapper(alone, unsafe_skip_copy=True).resolve(PositionProvider)
        above = self.line - found[self.roots[0]].start.line
        starts = {node: each.start for node, each in found.items()}
        return {node: (start.line + above, start.column) for node, start in starts.items()}


class Parsed:
    """The tree of one text. Nodes never change, so all users of a text may share its tree."""

    def __init__(self, text: str) -> None:
        self.text, self.module = text, cst.parse_module(text)
        self._parts: dict[cst.CSTNode, TopLevel] = {}
        self._owners: dict[cst.CSTNode, TopLevel] = {}
        self._codes: dict[cst.CSTNode, str] = {}

    @cached_property
    def _lines(self) -> Mapping[cst.CSTNode, int]:
        """The first line of each top-level statement, as Python's own parser gives it; empty if it cannot."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                statements = iter(ast.parse(self.text).body)
            lines: dict[cst.CSTNode, int] = {}
            for each in self.module.body:
                lines[each] = next(statements).lineno
                for _ in each.body[1:] if isinstance(each, cst.SimpleStatementLine) else ():
                    next(statements)
        except (SyntaxError, ValueError, StopIteration):
            return {}
        return {} if next(statements, None) is not None else lines

    def _part(self, statement: cst.CSTNode) -> TopLevel:
        if statement not in self._parts:
            part = self._parts[statement] = TopLevel(self.module, [statement], self._lines.get(statement))
            self._owners.update(dict.fromkeys(part.nodes, part))
        return self._parts[statement]

    @cached_property
    def _ends(self) -> tuple[TopLevel, TopLevel]:
        """The comments and empty lines at the start and at the end of the file."""
        first, last = (TopLevel(self.module, lines, None) for lines in (self.module.header, self.module.footer))
        self._owners.update({node: part for part in (first, last) for node in part.nodes})
        return first, last

    @cached_property
    def parts(self) -> list[TopLevel]:
        """All parts, in the order of the text."""
        first, last = self._ends
        return [first, *map(self._part, self.module.body), last]

    @cached_property
    def _statements(self) -> frozenset[cst.CSTNode]:
        return frozenset(self.module.body)

    def part_of(self, node: cst.CSTNode) -> TopLevel | None:
        """Returns the part that holds a node; None for the module, and for nodes of other trees."""
        if node in self._statements:
            return self._part(node)
        if node not in self._owners and node is not self.module:
            _ = self.parts  # walks what was not walked yet
        return self._owners.get(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        part = self.part_of(node)
        return None if part is None else part.parents.get(node)

    def place(self, node: cst.CSTNode) -> Place:
        """Returns where a node begins. Raises KeyError for nodes of other trees."""
        part = self.part_of(node)
        if part is not None and part.places is not None:
            return part.places[node]
        start = self._positions[node].start  # type: ignore[attr-defined]
        return start.line, start.column

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, object]:
        return dict(MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider))

    def code(self, changed: cst.Module) -> str:
        """Returns the text of a module that was made from this one. Only statements that differ are formatted."""
        ends = (self.module.header, changed.header), (self.module.footer, changed.footer)
        if not changed.has_trailing_newline or any(list(old) != list(new) for old, new in ends):
            return changed.code
        return "".join(map(self._code, (*changed.header, *changed.body, *changed.footer))) or changed.code

    def _code(self, node: cst.CSTNode) -> str:
        """Formats a statement, or a line at the start or the end of the file; a statement of this module only once."""
        if node not in self._statements:
            return self.module.code_for_node(node)
        if node not in self._codes:
            self._codes[node] = self.module.code_for_node(node)
        return self._codes[node]
