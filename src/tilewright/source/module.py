"""One parsed file, and the little of Python's meaning that the rules need.

Names are resolved through imports (`import cuda.tile as ct`) and through bindings that the text shows; where a
name is bound in a way that the text does not settle, there is no answer, and a rule then says nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from tilewright.source.reading import tree_of

Named: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Kind: TypeAlias = Literal["value", "part", "parameter", "function", "class", "other"]
Node = TypeVar("Node", bound=ast.AST)
Fact = TypeVar("Fact")

DEPTH = 8
"""Steps from a name to what it stands for."""


@dataclass(frozen=True)
class Binding:
    """How a name comes to be: ``value`` is the assigned expression (for a "part", the whole that is unpacked),
    or the function or class itself."""

    kind: Kind
    value: ast.AST | None
    place: ast.AST


class Module:
    """Raises as `reading.tree_of` does where the text cannot be parsed."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.facts: dict[Any, Any] = {}
        """What functions marked `once` found."""
        self.tree = tree_of(text)
        self.nodes: list[ast.AST] = []
        self._parents: dict[ast.AST, ast.AST] = {}
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            self.nodes.append(node)
            below = list(ast.iter_child_nodes(node))
            self._parents.update(dict.fromkeys(below, node))
            waiting.extend(reversed(below))

    # Places -------------------------------------------------------------------------------------------

    def every(self, kind: type[Node], inside: ast.AST | None = None) -> Iterator[Node]:
        """All nodes of one class, in the order of the text."""
        nodes: Iterable[ast.AST] = self.nodes if inside is None else ast.walk(inside)
        return (node for node in nodes if isinstance(node, kind))

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(a node, the child of it that leads here), from the nearest to the module. A function is left out
        where the node belongs to its decorators or defaults, which run outside it."""
        child = node
        while (parent := self._parents.get(child)) is not None:
            if not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) or child in parent.body:
                yield parent, child
            child = parent

    def scope(self, node: ast.AST) -> Scope:
        """The innermost function, or the module, in which ``node`` is evaluated."""
        for parent, _ in self.above(node):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return parent
        return self.tree

    def owner(self, node: ast.AST) -> Named | None:
        """The innermost named function; None at the top of the file or of a class."""
        for parent, _ in self.above(node):
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return parent
        return None

    @cached_property
    def lines(self) -> list[str]:
        """As the tree counts them: a form feed ends no line of Python's, though `str.splitlines` has it so."""
        return self.text.split("\n")

    # Names --------------------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> dict[str, str]:
        """Name in this file → its dotted origin; relative ones begin with a dot."""
        found = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    origin = f"{'.' * node.level}{node.module or ''}"
                    found[alias.asname or alias.name] = f"{origin}.{alias.name}"
        return found

    def dotted(self, node: ast.AST | None) -> str:
        """``ct.launch`` as ``cuda.tile.launch``; "" for what is no chain of names."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))

    @property
    def uses_cutile(self) -> bool:
        return any(origin.startswith(("cuda.tile", "cuda_tile")) for origin in self.imports.values())

    @cached_property
    def _bindings(self) -> dict[ast.AST, dict[str, list[Binding]]]:
        found: dict[ast.AST, dict[str, list[Binding]]] = {}

        def bind(scope: ast.AST, name: str, binding: Binding) -> None:
            found.setdefault(scope, {}).setdefault(name, []).append(binding)

        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                bind(self.scope(node), node.name, Binding("function", node, node))
            elif isinstance(node, ast.ClassDef):
                bind(self.scope(node), node.name, Binding("class", node, node))
            elif isinstance(node, ast.arg):
                function = self.parent(self._parents[node])
                assert function is not None
                bind(function, node.arg, Binding("parameter", None, node))
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bind(self.scope(node), node.id, self._bound_by(node))
        return found

    def _bound_by(self, name: ast.Name) -> Binding:
        whole: ast.AST = name
        parent = self._parents[name]
        while isinstance(parent, (ast.Tuple, ast.List, ast.Starred)):
            whole, parent = parent, self._parents[parent]
        kind: Kind = "value" if whole is name else "part"
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            if parent.value is None:
                return Binding("other", None, parent)
            both = isinstance(whole, ast.Tuple) and isinstance(parent.value, ast.Tuple)
            if both and len(whole.elts) == len(parent.value.elts) and name in whole.elts:  # type: ignore[attr-defined]
                return Binding("value", parent.value.elts[whole.elts.index(name)], parent)  # type: ignore[attr-defined]
            return Binding(kind, parent.value, parent)
        return Binding("other", None, parent)

    def bindings(self, name: str, at: ast.AST) -> tuple[Binding, ...]:
        """All bindings of a name in the nearest scope that binds it, seen from ``at``."""
        scope: Scope = self.scope(at)
        while True:
            if name in self._bindings.get(scope, {}):
                return tuple(self._bindings[scope][name])
            if isinstance(scope, ast.Module):
                return ()
            scope = self.scope(scope)

    def at_top(self, name: str) -> tuple[Binding, ...]:
        """Bindings of a name at the top of the file."""
        return tuple(self._bindings.get(self.tree, {}).get(name, ()))

    def values(self, node: ast.AST, depth: int = DEPTH) -> tuple[ast.AST, ...]:
        """What an expression may stand for: ``node`` itself, or what its name is bound to, in all ways.
        Empty where one of them is not in the text, as with a parameter."""
        if not isinstance(node, ast.Name):
            return (node,)
        found: list[ast.AST] = []
        bindings = self.bindings(node.id, node)
        for binding in bindings:
            if binding.value is None or binding.kind == "part" or not depth:
                return ()
            found.extend(self.values(binding.value, depth - 1))
        return tuple(found)

    def value(self, node: ast.AST) -> ast.AST | None:
        """The one thing that an expression stands for, where there is one."""
        found = self.values(node)
        return found[0] if len(found) == 1 else None

    def function(self, node: ast.AST | None) -> Function | None:
        """The function that an expression names or is."""
        found = self.value(node) if node is not None else None
        return found if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else None

    def calls_of(self, function: Named) -> tuple[tuple[ast.Call, ...], bool]:
        """Where a function is called by its name in this file, and whether it is also handed on as a value."""
        calls, handed_on = [], False
        for name in self._loads.get(function.name, ()):
            if not any(binding.value is function for binding in self.bindings(name.id, name)):
                continue
            parent = self.parent(name)
            if isinstance(parent, ast.Call) and parent.func is name:
                calls.append(parent)
            else:
                handed_on = True
        return tuple(calls), handed_on

    @cached_property
    def _loads(self) -> dict[str, list[ast.Name]]:
        found: dict[str, list[ast.Name]] = {}
        for name in self.every(ast.Name):
            if isinstance(name.ctx, ast.Load):
                found.setdefault(name.id, []).append(name)
        return found


def once(fact: Callable[[Module], Fact]) -> Callable[[Module], Fact]:
    """A fact about a module that is found once and remembered with it."""

    @wraps(fact)
    def remembered(module: Module) -> Fact:
        if fact not in module.facts:
            module.facts[fact] = fact(module)
        found: Fact = module.facts[fact]
        return found

    return remembered


# Small questions about syntax -------------------------------------------------------------------------


def argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    """An argument of a call, by place or by name; None where it is not given, or hidden behind a star."""
    if position < len(call.args):
        given = call.args[: position + 1]
        return None if any(isinstance(one, ast.Starred) for one in given) else call.args[position]
    return next((one.value for one in call.keywords if one.arg == keyword), None)


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {one.arg: one.value for one in call.keywords if one.arg is not None}


def own(function: Function | ast.Module, kind: type[Node]) -> Iterator[Node]:
    """Nodes of one class in a function's body, without those of functions inside it."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, kind):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting[:0] = list(ast.iter_child_nodes(node))


def returned(function: Function) -> tuple[ast.expr, ...]:
    """The expressions that a function returns or yields."""
    if isinstance(function, ast.Lambda):
        return (function.body,)
    nodes: list[ast.Return | ast.Yield] = [*own(function, ast.Return), *own(function, ast.Yield)]
    return tuple(node.value for node in nodes if node.value is not None)


def parameters(function: Function) -> tuple[ast.arg, ...]:
    """In the order of positional arguments, then those by keyword only."""
    given = function.args
    return (*given.posonlyargs, *given.args, *given.kwonlyargs)


def names(node: ast.AST) -> set[str]:
    """Every name that an expression reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def text(node: ast.AST) -> str:
    return ast.unparse(node)
