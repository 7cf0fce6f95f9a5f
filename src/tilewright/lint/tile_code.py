"""Finds tile code in a file: kernels, the functions that they call, and the arrays that each function accesses."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.source import source_file
from tilewright.source.cutile import kernels
from tilewright.source.source_file import Named, SourceFile, argument, keywords, parameters, remembered
from tilewright.source.values import called_name

READS = {"load", "gather", "load_advanced_indexing", "load_offset"}
WRITES = {"store", "scatter", "store_advanced_indexing", "store_offset"}
VIEWS = {"slice", "tiled_view", "get_raw_memory"}
SHAPE_AT = {
    "load": (2, "shape"), "full": (0, "shape"), "zeros": (0, "shape"), "ones": (0, "shape"), "arange": (0, "size"),
    "reshape": (1, "shape"),
}  # fmt: skip
"""Maps an operation to the position and the name of the argument that is the tile's shape."""


@remembered
def tile_functions(file: SourceFile) -> tuple[Named, ...]:
    """Returns kernels, functions decorated as tile functions, and the functions of this file that they call."""
    functions = [kernel.node for kernel in kernels(file)]
    for node in file.every(ast.FunctionDef) if "cuda" in file.packages else ():
        for decorator in node.decorator_list:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if file.dotted(call) == "cuda.tile.function" and "host=True" not in ast.unparse(decorator):
                functions.append(node)
    for function in functions:  # the list grows during the loop
        for call in file.every(ast.Call, function):
            called = file.function(call.func)
            if isinstance(called, ast.FunctionDef) and called not in functions:
                functions.append(called)
    return tuple(dict.fromkeys(functions))


def tile_calls(file: SourceFile, name: str | None = None) -> Iterator[tuple[Named, ast.Call]]:
    """Yields calls in tile code, each with the function around it; with ``name``, only calls of this operation."""
    for function in tile_functions(file):
        for call in file.every(ast.Call, function):
            if name is None or operation(file, call) == name:
                yield function, call


def shape_of(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """Returns the tile shape that is written in a call of a cuTile operation; None for any other call."""
    place = SHAPE_AT.get(operation(file, call))
    return argument(call, *place) if place is not None else None


def extents(node: ast.expr | None) -> list[ast.expr]:
    """Returns the elements of a shape or an index: the items of a literal tuple or list, or the expression itself."""
    is_tuple = isinstance(node, (ast.Tuple, ast.List))
    return source_file.elements(node) if is_tuple or node is None else [node]


def in_tile_code(file: SourceFile, node: ast.AST) -> bool:
    return any(parent in tile_functions(file) for parent, _ in file.above(node))


def operation(file: SourceFile, call: ast.Call) -> str:
    """Returns the name of a cuTile operation, ``load`` for `ct.load(…)`; "" for any other call."""
    prefix, _, name = file.dotted(call.func).rpartition(".")
    return name if prefix == "cuda.tile" else ""


@dataclass
class Accesses:
    """For each kind of access, maps an array parameter of a function to the calls that access the array."""

    read: dict[str, list[ast.AST]] = field(default_factory=dict)
    written: dict[str, list[ast.AST]] = field(default_factory=dict)
    added: dict[str, list[ast.AST]] = field(default_factory=dict)
    """Atomic operations, which both read and write."""

    def both(self, file: SourceFile) -> set[str]:
        """Returns the arrays that one launch may both read and write.

        An array that is read in one branch of a condition and written only in the other does not count.
        """
        both = set(self.added)
        for name in set(self.written) & set(self.read):
            pairs = itertools.product(self.read[name], self.written[name])
            if not all(exclusive(file, read, written) for read, written in pairs):
                both.add(name)
        return both

    def of(self, operation: str) -> dict[str, list[ast.AST]] | None:
        """Returns the accesses of the same kind as ``operation``; None if the operation accesses no array."""
        if operation.startswith("atomic_"):
            return self.added
        return self.read if operation in READS else self.written if operation in WRITES else None


@remembered
def _known_accesses(file: SourceFile) -> dict[Named, Accesses]:
    return {}


def accesses(file: SourceFile, function: Named, depth: int = source_file.DEPTH) -> Accesses:
    """Returns how a tile function accesses its arrays, directly or through functions of this file that it calls."""
    known = _known_accesses(file)
    if function not in known and depth:
        known[function] = Accesses()  # for functions that call themselves
        known[function] = _accesses(file, function, depth)
    return known.get(function, Accesses())


def _accesses(file: SourceFile, function: Named, depth: int) -> Accesses:
    result = Accesses()
    arrays = {parameter.arg: parameter.arg for parameter in parameters(function)}
    for name, value in source_file.assignments(file.every(ast.Assign, function)):  # view = array.slice(…)
        if (root := _root(value)) in arrays:
            arrays[name] = arrays[root]
    for call in file.every(ast.Call, function):
        name = operation(file, call)
        tensor = (call.args[0] if call.args else None) if name else getattr(call.func, "value", None)
        places = result.of(name or called_name(call))
        if places is not None and _root(tensor) in arrays:
            places.setdefault(arrays[_root(tensor)], []).append(call)
        called = file.function(call.func)
        if isinstance(called, ast.FunctionDef) and called is not function:
            inner, passed = accesses(file, called, depth - 1), passed_by(call, called)
            for outer, parameters_inside in zip(vars(result).values(), vars(inner).values(), strict=True):
                for parameter in parameters_inside:
                    if (array := arrays.get(_root(passed.get(parameter)))) is not None:
                        outer.setdefault(array, []).append(call)
    return result


def exclusive(file: SourceFile, one: ast.AST, other: ast.AST) -> bool:
    """Returns whether two nodes are in opposite branches of a condition, so that a launch runs at most one of them."""
    arms = {parent: child in parent.body for parent, child in file.above(one) if isinstance(parent, ast.If)}
    others = ((parent, child in parent.body) for parent, child in file.above(other) if isinstance(parent, ast.If))
    return any(arms.get(parent, in_body) != in_body for parent, in_body in others)


def passed_by(call: ast.Call, function: Named) -> dict[str, ast.expr]:
    """Returns the arguments of ``call`` by the names of the parameters of ``function``."""
    plain = itertools.takewhile(lambda value: not isinstance(value, ast.Starred), call.args)
    pairs = zip(parameters(function), plain, strict=False)
    return {parameter.arg: value for parameter, value in pairs} | keywords(call)


def owner_of_parameter(file: SourceFile, name: ast.Name) -> Named | None:
    """Returns the function around ``name``, or a function farther out, that has ``name`` as a parameter."""
    for binding in file.bindings(name.id, name):
        arguments = file.parent(binding.place) if binding.kind == "parameter" else None
        function = file.parent(arguments) if arguments is not None else None
        if isinstance(function, Named):
            return function
    return None


def passed_for(file: SourceFile, name: ast.Name) -> list[ast.expr]:
    """Returns the arguments for the parameter ``name`` in all calls of the file; empty if some call passes none."""
    function = owner_of_parameter(file, name)
    passed = [passed_by(call, function).get(name.id) for call in file.calls_of(function)[0]] if function else []
    return [] if None in passed else [value for value in passed if value is not None]


def _root(node: ast.AST | None) -> str:
    """Returns the name of an array, or of the array behind a view such as ``a.slice(…)``; "" for anything else."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def annotation(file: SourceFile, parameter: ast.arg) -> str:
    """Returns the kind of a parameter by its annotation: ``constant``, ``constant float``, ``scalar`` or "".

    The kind is ``constant`` for `ct.Constant[…]`, also under another name, and ``scalar`` for int, float and bool.
    """
    if parameter.annotation is None:
        return ""
    node = file.value(parameter.annotation) or parameter.annotation
    base = node.value if isinstance(node, ast.Subscript) else node
    dotted = file.dotted(base)
    if dotted.endswith(("Constant", "ConstantAnnotation")) or dotted.rpartition(".")[2].startswith("Const"):
        written = f"{ast.unparse(parameter.annotation)} {ast.unparse(node)}".lower()
        return "constant float" if "float" in written else "constant"
    return "scalar" if dotted in {"int", "float", "bool"} else ""
