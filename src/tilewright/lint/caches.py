"""The caches that hold what searches found, and what their keys are made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.lint.tile_code import given, passed_for, taken_by
from tilewright.source.cutile import SearchCall, searches
from tilewright.source.source_file import Named, SourceFile, names, own, parameters, remembered, returned


@dataclass(frozen=True)
class Cache:
    """A mapping at the top of the file, filled where a search ran."""

    name: str
    made: ast.AST
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Store:
    """One place that fills it: ``key`` as written there."""

    place: ast.AST
    key: ast.expr
    search: SearchCall


@remembered
def tuning_caches(file: SourceFile) -> tuple[Cache, ...]:
    """The caches that a search of the file fills, directly or through the function that runs it."""
    stores: dict[str, list[Store]] = {}
    for node in file.nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Store):
            continue
        if not isinstance(node.value, ast.Name) or (owner := file.owner(node)) is None:
            continue
        search = _search_behind(file, owner, node)
        if search is not None and file.at_top(node.value.id):
            stores.setdefault(node.value.id, []).append(Store(node, node.slice, search))
    return tuple(Cache(name, file.at_top(name)[0].place, tuple(places)) for name, places in stores.items())


def _search_behind(file: SourceFile, owner: Named, store: ast.AST) -> SearchCall | None:
    """The last search before ``store`` in its function, or in a function called there."""
    there = [one for one in searches(file) if file.owner(one.call) is owner]
    before = [one for one in there if one.call.lineno <= _line(store)]
    if before:
        return before[-1]
    for parent, _ in file.above(store):
        if isinstance(parent, ast.Assign):
            for call in file.every(ast.Call, parent.value):
                called = file.function(call.func)
                inner = [one for one in searches(file) if file.owner(one.call) is called]
                if called is not None and inner:
                    return inner[0]
        if parent is owner:
            break
    return None


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


@dataclass(frozen=True)
class Part:
    """One expression that a key is made of, and where its names are bound."""

    node: ast.AST


def key_parts(file: SourceFile, key: ast.expr) -> tuple[Part, ...] | None:
    """The elements of a key, through names, functions of this file and the places that pass it in; None where
    the text does not show them."""
    found: list[Part] = []
    return tuple(found) if _spread(file, key, found, 6) else None


def _spread(file: SourceFile, node: ast.AST, found: list[Part], depth: int) -> bool:
    if not depth:
        return False
    if isinstance(node, ast.Tuple):
        return all(_spread(file, one, found, depth - 1) for one in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _spread(file, node.left, found, depth) and _spread(file, node.right, found, depth)
    if isinstance(node, ast.Call) and isinstance(function := file.function(node.func), ast.FunctionDef):
        found.extend(Part(one) for one in (*node.args, *(word.value for word in node.keywords)))
        return all(_spread(file, one, found, depth - 1) for one in returned(function))
    if isinstance(node, ast.Name):
        return _spread_name(file, node, found, depth)
    found.append(Part(node))
    return True


def _spread_name(file: SourceFile, name: ast.Name, found: list[Part], depth: int) -> bool:
    bindings = file.bindings(name.id, name)
    tuples = [one.value for one in bindings if _tells(file, one.value)]
    if tuples:
        return all(_spread(file, one, found, depth - 1) for one in tuples if one is not None)
    found.append(Part(name))
    if any(one.kind == "parameter" for one in bindings):
        passed = passed_for(file, name)
        if "key" in name.id.lower():
            return bool(passed) and all(_spread(file, one, found, depth - 1) for one in passed)
    return True


def _tells(file: SourceFile, value: ast.AST | None) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(file.function(value.func), ast.FunctionDef)
    return isinstance(value, ast.Tuple)


# What a key covers ------------------------------------------------------------------------------------


class Covered:
    """Answers whether the value of an expression follows from a key's parts."""

    def __init__(self, file: SourceFile, parts: tuple[Part, ...]) -> None:
        self.file = file
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.in_part: set[str] = set()
        """Shapes of which the key holds an extent: taken for settled where they are indexed."""
        self.words: set[str] = set()
        for part in parts:
            self.words |= {word.lower() for word in re.findall(r"\w+", ast.unparse(part.node))}
            for atom in _atoms(part.node):
                self._cover(atom)

    def _cover(self, atom: ast.AST) -> None:
        """A name or a chain, and where a name is one of what an expression unpacks, that expression."""
        if not isinstance(atom, ast.Name):
            self.attributes.add(ast.unparse(atom))
            return
        self.names.add(atom.id)
        for binding in self.file.bindings(atom.id, atom):
            if binding.value is not None and binding.kind in {"part", "value"}:
                whole = binding.value.value if isinstance(binding.value, ast.Subscript) else binding.value
                if isinstance(whole, ast.Attribute):
                    self.in_part.add(ast.unparse(whole))
                    self.words.add(whole.attr.lower())

    def mentions(self, *words: str) -> bool:
        return any(word in there for word in words for there in self.words)

    def missing(self, node: ast.AST, ignored: set[str], depth: int = 6, unpacked: bool = False) -> list[str]:
        """What ``node`` depends on that the key does not settle, by name."""
        found: list[str] = []
        if not depth:
            return found
        for atom in _atoms(node):
            root = names(atom)
            written = ast.unparse(atom)
            if not root or root <= ignored or written in self.attributes:
                continue
            if written in self.in_part and not unpacked:
                continue
            if "device" in written.lower() and self.mentions("device"):
                continue
            if isinstance(atom, ast.Name):
                found += self._missing_name(atom, ignored, depth)
            elif not any(name in self.names or self._settled(name) for name in root):
                found.append(written)
        return list(dict.fromkeys(found))

    def _settled(self, name: str) -> bool:
        """Imported, or fixed at the top of the file."""
        return name in self.file.imports or bool(self.file.at_top(name))

    def _missing_name(self, name: ast.Name, ignored: set[str], depth: int) -> list[str]:
        if name.id in self.names or self._settled(name.id):
            return []
        bindings = self.file.bindings(name.id, name)
        if not bindings or any(one.kind in {"other", "function", "class"} for one in bindings):
            return []
        if any(one.kind == "parameter" for one in bindings):
            return [] if self._follows_for_callers(name, ignored, depth) else [name.id]
        found: list[str] = []
        for binding in bindings:
            assert binding.value is not None
            found += self.missing(binding.value, ignored, depth - 1, binding.kind == "part")
        return [name.id] if found else []

    def _follows_for_callers(self, parameter: ast.Name, ignored: set[str], depth: int) -> bool:
        """Whether all callers in the file compute a parameter from what they pass for the key."""
        owner = taken_by(self.file, parameter)
        calls = self.file.calls_of(owner)[0] if owner is not None else ()
        for call in calls:
            assert owner is not None
            passed = given(owner, call)
            if parameter.id not in passed:
                return False
            there = Covered(self.file, tuple(Part(passed[name]) for name in self.names if name in passed))
            there.names |= self.names
            there.attributes |= self.attributes
            there.in_part |= self.in_part
            there.words |= self.words
            if there.missing(passed[parameter.id], ignored, depth - 1):
                return False
        return bool(calls)


def _atoms(node: ast.AST) -> Iterator[ast.AST]:
    """The names and `a.shape`-like chains that an expression reads; a call's own name is not its value."""
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name):
            yield node
            return
    elif isinstance(node, ast.Name):
        yield node
        return
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        children = [*node.args, *(word.value for word in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            children.append(node.func.value)
    for child in children:
        yield from _atoms(child)


def local_names(function: ast.AST) -> set[str]:
    """Parameters of a function: what the search passes, or what a comprehension binds."""
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return {one.arg for one in parameters(function)}
    return set()


def assigned_inside(function: ast.AST) -> set[str]:
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {one.id for one in own(function, ast.Name) if isinstance(one.ctx, ast.Store)}
    return set()
