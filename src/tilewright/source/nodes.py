"""Lists the nodes of a syntax tree once, so that the nodes of a class below any node are found without a walk."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)

PLAIN_FIELDS = {
    "ctx", "op", "ops", "id", "attr", "arg", "asname", "module", "level", "type_comment", "type_ignores", "simple",
    "conversion", "is_async",
}  # fmt: skip
"""The fields of nodes that hold no nodes, or only the few objects that stand for ``+`` or for a name's context."""


class Nodes:
    """The nodes of one tree.

    every: all nodes, each before those below it, in the order of the fields. So the nodes below one are a slice.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.every: list[ast.AST] = []
        self._below: list[tuple[ast.AST, list[ast.AST]]] = []
        self._of_class: dict[type[ast.AST], list[ast.AST]] = {}
        self._places_of_class: dict[type[ast.AST], list[int]] = {}
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            self.every.append(node)
            kind = type(node)
            if (same := self._of_class.get(kind)) is None:
                same = self._of_class[kind] = []
            same.append(node)
            if kind is not ast.Name and kind is not ast.Constant and (inner := children(node)):
                self._below.append((node, inner))
                inner.reverse()
                waiting += inner

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {one: node for node, inner in self._below for one in inner}

    def of_class(self, kind: type[Node], inside: ast.AST | None = None) -> Iterator[Node]:
        """Yields the nodes of one class, in the whole tree or from ``inside`` on down."""
        nodes: Sequence[ast.AST]
        of_class = self._of_class.get(kind, []) if kind._fields else self.every  # no fields: a base class, as ast.stmt
        if inside is None:
            nodes = of_class
        elif (first := self._places.get(inside)) is None:  # not a node of this tree
            nodes = tuple(below(inside))
        elif kind._fields:
            places = self._places_of(kind)
            nodes = of_class[bisect_left(places, first) : bisect_left(places, self._end(inside))]
        else:
            nodes = self.every[first : self._end(inside)]
        return (node for node in nodes if isinstance(node, kind))

    def of_classes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Yields the nodes of several classes in the order of the tree."""
        return (node for node in self.every if type(node) in kinds)

    @cached_property
    def _places(self) -> dict[ast.AST, int]:
        return {node: place for place, node in enumerate(self.every)}

    def _places_of(self, kind: type[ast.AST]) -> list[int]:
        """Returns the places in `every` of the nodes of one class."""
        if kind not in self._places_of_class:
            self._places_of_class[kind] = [self._places[node] for node in self._of_class.get(kind, ())]
        return self._places_of_class[kind]

    def _end(self, node: ast.AST) -> int:
        """Returns the place in `every` after the last node below ``node``."""
        while inner := children(node):
            node = inner[-1]
        return self._places[node] + 1


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """Maps a class of nodes to its fields that may hold other nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        fields = () if kind is ast.Constant else tuple(name for name in kind._fields if name not in PLAIN_FIELDS)
        self[kind] = fields
        return fields


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """Returns the nodes directly below a node, in the order of the fields.

    Leaves out operators (`ast.Add`) and the contexts of names (`ast.Load`), which are half of all nodes, and the same
    few objects everywhere.
    """
    found: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif type(value) is list:
            found += [one for one in value if isinstance(one, ast.AST)]
    return found


def below(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a node and all nodes below it, without operators and contexts."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))
