"""Finds caches that store the results of searches, the parts of their keys, and tensors whose strides can differ."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.lint.tile_code import annotation, owner_of_parameter, passed_by, passed_for
from tilewright.source.cutile import SearchSite, kernels_of, searches
from tilewright.source.source_file import Function, Named, SourceFile, names, own, parameters, remembered, returned

DEPTH = 6
"""The most steps, through variables and functions, from a part of a key to the values from which it is computed."""


@dataclass(frozen=True)
class TuningCache:
    """A mapping that is filled after a search: at the top of the file, or in an attribute. ``made``: where it is
    defined."""

    name: str
    made: ast.AST
    writes: tuple[CacheWrite, ...]


@dataclass(frozen=True)
class CacheWrite:
    """One assignment to a cache (``place``), its ``key`` expression, and the search whose result is stored."""

    place: ast.Subscript
    key: ast.expr
    search: SearchSite


@remembered
def tuning_caches(file: SourceFile) -> tuple[TuningCache, ...]:
    """Returns the caches of the file that are filled with the result of a search."""
    writes: dict[str, list[CacheWrite]] = {}
    made: dict[str, ast.AST] = {}
    for node in file.every(ast.Subscript) if searches(file) else ():
        owner = file.owner(node)
        if not owner or not isinstance(node.ctx, ast.Store) or (place := _made(file, node.value)) is None:
            continue
        if (search := _search_before(file, owner, node)) is not None:
            name = ast.unparse(node.value)
            made.setdefault(name, place)
            writes.setdefault(name, []).append(CacheWrite(node, node.slice, search))
    return tuple(TuningCache(name, made[name], tuple(places)) for name, places in writes.items())


def _made(file: SourceFile, mapping: ast.expr) -> ast.AST | None:
    """Returns the statement that makes a mapping at the top of the file, or in an attribute of an object or a class."""
    if isinstance(mapping, ast.Name):
        bindings = file.at_top(mapping.id)
        return bindings[0].place if bindings else None
    if not isinstance(mapping, ast.Attribute) or not isinstance(mapping.value, ast.Name):
        return None
    for statement in file.every(ast.stmt):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        value = getattr(statement, "value", None)
        attributes = [getattr(each, "attr", getattr(each, "id", "")) for each in targets]
        if mapping.attr in attributes and isinstance(value, (ast.Dict, ast.Call)):
            return statement
    return None


def _search_before(file: SourceFile, owner: Named, write: ast.Subscript) -> SearchSite | None:
    """Returns the last search before ``write`` in the function ``owner``, or a search in a function that ``owner``
    calls before."""
    here = [search for search in searches(file) if file.owner(search.call) is owner]
    before = [search for search in here if search.call.lineno <= write.lineno]
    if before:
        return before[-1]
    for parent, _ in file.within(write):
        for call in file.every(ast.Call, parent.value) if isinstance(parent, ast.Assign) else ():
            called = file.function(call.func)
            for search in searches(file) if called is not None else ():
                if file.owner(search.call) is called:
                    return search
    return None


def key_parts(file: SourceFile, key: ast.expr) -> list[ast.AST] | None:
    """Returns the expressions that a key is made of, through variables and functions; None if the text hides them."""
    parts: list[ast.AST] = []
    return parts if _add_parts(file, key, parts, DEPTH) else None


def _add_parts(file: SourceFile, node: ast.AST, parts: list[ast.AST], depth: int) -> bool:
    if not depth:
        return False
    if isinstance(node, ast.Tuple):
        return all(_add_parts(file, element, parts, depth - 1) for element in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _add_parts(file, node.left, parts, depth) and _add_parts(file, node.right, parts, depth)
    if isinstance(node, ast.Call) and isinstance(function := file.function(node.func), ast.FunctionDef):
        parts.extend((*node.args, *(keyword.value for keyword in node.keywords)))
        return all(_add_parts(file, value, parts, depth - 1) for value in returned(function))
    if isinstance(node, ast.Name):
        return _add_parts_of_name(file, node, parts, depth)
    parts.append(node)
    return True


def _add_parts_of_name(file: SourceFile, name: ast.Name, parts: list[ast.AST], depth: int) -> bool:
    bindings = file.bindings(name.id, name)
    tuples: list[ast.AST] = []
    for value in (binding.value for binding in bindings):
        called = file.function(value.func) if isinstance(value, ast.Call) else None
        if isinstance(value, ast.Tuple) or (value is not None and isinstance(called, ast.FunctionDef)):
            tuples.append(value)  # a tuple of the key's parts
    if tuples:
        return all(_add_parts(file, value, parts, depth - 1) for value in tuples)
    parts.append(name)
    if "key" in name.id.lower() and any(binding.kind == "parameter" for binding in bindings):
        passed = passed_for(file, name)
        return bool(passed) and all(_add_parts(file, value, parts, depth - 1) for value in passed)
    return True


OF_SHAPE = frozenset(("numel", "nelement", "size", "dim", "ndimension", "ndim"))
"""What follows from the shape of an array."""


class CoveredByKey:
    """Tells whether a key with these ``parts`` determines the value of an expression.

    also: the parts of another key, which are added.
    """

    def __init__(self, file: SourceFile, parts: list[ast.AST], also: CoveredByKey | None = None) -> None:
        self.file = file
        self.names: set[str] = set(also.names) if also else set()
        self.attributes: set[str] = set(also.attributes) if also else set()
        self.in_part: set[str] = set(also.in_part) if also else set()
        """Shapes of which the key has at least one extent. The key then counts as determining the whole shape."""
        self.words: set[str] = set(also.words) if also else set()
        for part in parts:
            self.words |= {word.lower() for word in re.findall(r"\w+", ast.unparse(part))}
            for atom in _atoms(part):
                self._cover(atom)

    def _cover(self, atom: ast.Name | ast.Attribute) -> None:
        """Adds a name or an attribute of the key. For ``M, N = x.shape``, the name ``M`` also adds ``x.shape``."""
        if not isinstance(atom, ast.Name):
            self.attributes.add(ast.unparse(atom))
            return
        self.names.add(atom.id)
        for binding in self.file.bindings(atom.id, atom):
            whole = binding.value.value if isinstance(binding.value, ast.Subscript) else binding.value
            if isinstance(whole, ast.Attribute):
                self.in_part.add(ast.unparse(whole))
                self.words.add(whole.attr.lower())

    def mentions(self, *words: str) -> bool:
        return any(word in there for word in words for there in self.words)

    def missing(self, node: ast.AST, ignored: set[str], depth: int = DEPTH, unpacked: bool = False) -> list[str]:
        """Returns the names on which ``node`` depends but which the key does not determine. Skips ``ignored`` names."""
        missing: list[str] = []
        for atom in _atoms(node) if depth else ():
            root, written = names(atom), ast.unparse(atom)
            if not root or root <= ignored or written in self.attributes:
                continue
            if (written in self.in_part and not unpacked) or ("device" in written.lower() and self.mentions("device")):
                continue
            if isinstance(atom, ast.Name):
                missing += self._missing_name(atom, ignored, depth)
            elif not any(name in self.names or self._is_global(name) for name in root):
                missing.append(written)
        return list(dict.fromkeys(missing))

    def _is_global(self, name: str) -> bool:
        return name in self.file.imports or bool(self.file.at_top(name))

    def _missing_name(self, name: ast.Name, ignored: set[str], depth: int) -> list[str]:
        bindings = self.file.bindings(name.id, name)
        kinds = {binding.kind for binding in bindings}
        if name.id in self.names or self._is_global(name.id) or kinds & {"other", "function", "class"}:
            return []
        if "parameter" in kinds:
            return [] if self._follows_for_callers(name, ignored, depth) else [name.id]
        values = [(binding.value, binding.kind == "part") for binding in bindings if binding.value is not None]
        return [name.id] if any(self.missing(value, ignored, depth - 1, part) for value, part in values) else []

    def _follows_for_callers(self, parameter: ast.Name, ignored: set[str], depth: int) -> bool:
        """Returns whether the key determines ``parameter`` in every call in the file.

        The key determines it if the call computes ``parameter`` only from values that are also parts of the key.
        """
        owner = owner_of_parameter(self.file, parameter)
        calls = [passed_by(call, owner) for call in self.file.calls_of(owner)[0]] if owner is not None else []
        for passed in calls:
            if parameter.id not in passed:
                return False
            covered = CoveredByKey(self.file, [passed[name] for name in self.names if name in passed], self)
            if covered.missing(passed[parameter.id], ignored, depth - 1):
                return False
        return bool(calls)


def _atoms(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Yields the names that an expression reads, and attributes such as `a.shape`; skips called functions."""
    if isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        yield ast.Attribute(node.value, "shape") if isinstance(node, ast.Attribute) and node.attr in OF_SHAPE else node
        return
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        children = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            follows = "shape" if node.func.attr in OF_SHAPE else "dtype" if node.func.attr == "element_size" else ""
            children.append(ast.Attribute(node.func.value, follows) if follows else node.func.value)
    for child in children:
        yield from _atoms(child)


def bound_inside(function: Function | None) -> set[str]:
    """Returns the names that a function binds: its parameters, and the names that its body assigns."""
    if function is None:
        return set()
    assigned = {name.id for name in own(function, ast.Name) if isinstance(name.ctx, ast.Store)}
    return {parameter.arg for parameter in parameters(function)} | assigned


# Strides ----------------------------------------------------------------------------------------------
# Strides can differ between calls if a tensor comes directly from a caller outside the file, and no line on the way
# makes the tensor contiguous or asserts that it is contiguous.

VIEWS = {"view", "transpose", "permute", "t", "squeeze", "unsqueeze", "detach", "expand", "narrow"}
"""Methods whose result shares the tensor's memory."""


def strides_vary(file: SourceFile, search: SearchSite) -> bool:
    """Returns whether some tensor among the search's arguments gets its strides from a caller outside the file."""
    values = (value for function in file.values(search.args_fn) for value in returned(function))
    return any(_from_caller(file, tensor, 6) for value in values for tensor in _tensors(file, search, value))


def _tensors(file: SourceFile, search: SearchSite, value: ast.AST) -> list[ast.expr]:
    """Returns the arguments in ``value`` that are arrays, judged by the kernel's signature or their use in the file."""
    passed = [file.value(value)]
    if isinstance(value, ast.Name) and not isinstance(passed[0], ast.Tuple):
        passed = [file.value(argument) for argument in passed_for(file, value)]
    kernels = kernels_of(file, search.kernel)
    declared = parameters(kernels[0].node) if len(kernels) == 1 else ()
    found: list[ast.expr] = []
    for whole in (value for value in passed if isinstance(value, ast.Tuple)):
        if declared and len(declared) == len(whole.elts):
            pairs = zip(whole.elts, declared, strict=True)
            found += [tensor for tensor, into in pairs if not annotation(file, into)]
        else:
            owners = ((node, owner_of_parameter(file, node)) for node in whole.elts if isinstance(node, ast.Name))
            found += [tensor for tensor, owner in owners if owner and _reads(file, owner, tensor, "dtype", "device")]
    return found


def _from_caller(file: SourceFile, node: ast.AST, depth: int) -> bool:
    """Returns whether a tensor, or the tensor that it is a view of, comes from a caller outside the file."""
    if isinstance(node, ast.Call):
        method = node.func
        return isinstance(method, ast.Attribute) and method.attr in VIEWS and _from_caller(file, method.value, depth)
    if not isinstance(node, ast.Name) or not depth:
        return False
    bindings = file.bindings(node.id, node)
    function = owner_of_parameter(file, node)
    if len(bindings) == 1 and bindings[0].kind == "value" and bindings[0].value is not None:
        return _from_caller(file, bindings[0].value, depth - 1)
    if function is None or len(bindings) != 1 or _reads(file, function, node, "contiguous", "is_contiguous"):
        return False
    if any("contiguous" in ast.unparse(decorator) for decorator in function.decorator_list):
        return False
    calls, passed_on = file.calls_of(function)
    if calls:
        return any(_from_caller(file, passed, depth - 1) for passed in passed_for(file, node))
    return not passed_on


def _reads(file: SourceFile, function: Named, tensor: ast.expr, *attributes: str) -> bool:
    chains = {f"{ast.unparse(tensor)}.{attribute}" for attribute in attributes}
    return any(node.attr in attributes and ast.unparse(node) in chains for node in file.every(ast.Attribute, function))
