"""Code that runs on the device: kernels, the functions that they call, and the arrays that each reads and writes."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.source.cutile import kernels
from tilewright.source.source_file import (
    DEPTH,
    Named,
    SourceFile,
    argument,
    assignments,
    elements,
    keywords,
    parameters,
    remembered,
)
from tilewright.source.values import called_name

READS = {"load", "gather", "load_advanced_indexing", "load_offset"}
WRITES = {"store", "scatter", "store_advanced_indexing", "store_offset"}
VIEWS = {"slice", "tiled_view", "get_raw_memory"}
SHAPE_AT = {
    "load": (2, "shape"), "full": (0, "shape"), "zeros": (0, "shape"), "ones": (0, "shape"), "arange": (0, "size"),
    "reshape": (1, "shape"),
}  # fmt: skip
"""Operation → position and name of the argument that says a tile's shape."""


@remembered
def tile_functions(file: SourceFile) -> tuple[Named, ...]:
    """Kernels, functions decorated as tile functions, and the functions of this file that these call."""
    functions = [kernel.node for kernel in kernels(file)]
    for node in file.every(ast.FunctionDef):
        for decorator in node.decorator_list:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if file.dotted(call) == "cuda.tile.function" and "host=True" not in ast.unparse(decorator):
                functions.append(node)
    for function in functions:  # grows while it is walked
        for call in file.every(ast.Call, function):
            called = file.function(call.func)
            if isinstance(called, ast.FunctionDef) and called not in functions:
                functions.append(called)
    return tuple(dict.fromkeys(functions))


def tile_calls(file: SourceFile, name: str | None = None) -> Iterator[tuple[Named, ast.Call]]:
    """Calls in tile code, all or those of one operation of cuTile, each with the function around it."""
    for function in tile_functions(file):
        for call in file.every(ast.Call, function):
            if name is None or operation(file, call) == name:
                yield function, call


def shape_of(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """The tile shape that is written in an operation of cuTile; None for any other call."""
    place = SHAPE_AT.get(operation(file, call))
    return argument(call, *place) if place is not None else None


def extents(node: ast.expr | None) -> list[ast.expr]:
    """The elements of a written shape or index; a single expression is its own element."""
    return elements(node) if isinstance(node, (ast.Tuple, ast.List)) or node is None else [node]


def in_tile_code(file: SourceFile, node: ast.AST) -> bool:
    """Whether ``node`` stands in the body of a tile function."""
    return any(parent in tile_functions(file) for parent, _ in file.above(node))


def operation(file: SourceFile, call: ast.Call) -> str:
    """``load`` for `ct.load(…)`; "" if the call is not an operation of cuTile."""
    prefix, _, name = file.dotted(call.func).rpartition(".")
    return name if prefix == "cuda.tile" else ""


@dataclass
class Accesses:
    """Parameters of a function by name → the places where their array is read, and written."""

    read: dict[str, list[ast.AST]] = field(default_factory=dict)
    written: dict[str, list[ast.AST]] = field(default_factory=dict)
    added: dict[str, list[ast.AST]] = field(default_factory=dict)
    """By an atomic operation, which does both."""

    def both(self, file: SourceFile) -> set[str]:
        """Arrays that one launch may read and write: not in opposite arms of a condition."""
        return set(self.added) | {
            name
            for name in set(self.written) & set(self.read)
            if any(not _exclusive(file, read, written) for read in self.read[name] for written in self.written[name])
        }

    def of(self, operation: str) -> dict[str, list[ast.AST]] | None:
        """The places of the kind of access that ``operation`` makes; None if it makes none."""
        if operation.startswith("atomic_"):
            return self.added
        return self.read if operation in READS else self.written if operation in WRITES else None


@remembered
def _known_accesses(file: SourceFile) -> dict[Named, Accesses]:
    return {}


def accesses(file: SourceFile, function: Named, depth: int = DEPTH) -> Accesses:
    """What a tile function does with its arrays, directly and in the functions of this file that it calls."""
    known = _known_accesses(file)
    if function not in known and depth:
        known[function] = Accesses()  # a function that calls itself adds nothing
        known[function] = _accesses(file, function, depth)
    return known.get(function, Accesses())


def _accesses(file: SourceFile, function: Named, depth: int) -> Accesses:
    done = Accesses()
    arrays = {parameter.arg: parameter.arg for parameter in parameters(function)}
    for name, value in assignments(file.every(ast.Assign, function)):  # view = array.slice(…)
        if (root := _root(value)) in arrays:
            arrays[name] = arrays[root]
    for call in file.every(ast.Call, function):
        named = operation(file, call)
        tensor = (call.args[0] if call.args else None) if named else getattr(call.func, "value", None)
        places = done.of(named or called_name(call))
        if places is not None and _root(tensor) in arrays:
            places.setdefault(arrays[_root(tensor)], []).append(call)
        called = file.function(call.func)
        if isinstance(called, ast.FunctionDef) and called is not function:
            inner, passed = accesses(file, called, depth - 1), given(called, call)
            for outer, there in zip(vars(done).values(), vars(inner).values(), strict=True):
                for parameter in there:
                    if (array := arrays.get(_root(passed.get(parameter)))) is not None:
                        outer.setdefault(array, []).append(call)
    return done


def _exclusive(file: SourceFile, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places are in opposite arms of a condition, so that one launch runs only one of them."""
    arms = {parent: child in parent.body for parent, child in file.above(one) if isinstance(parent, ast.If)}
    return any(
        isinstance(parent, ast.If) and parent in arms and arms[parent] != (child in parent.body)
        for parent, child in file.above(other)
    )


def given(function: Named, call: ast.Call) -> dict[str, ast.expr]:
    """Parameter → what a call passes for it."""
    plain = itertools.takewhile(lambda value: not isinstance(value, ast.Starred), call.args)
    pairs = zip(parameters(function), plain, strict=False)
    return {parameter.arg: value for parameter, value in pairs} | keywords(call)


def taken_by(file: SourceFile, name: ast.Name) -> Named | None:
    """The function that has ``name`` as a parameter: the one that reads it, or one around that."""
    for binding in file.bindings(name.id, name):
        arguments = file.parent(binding.place) if binding.kind == "parameter" else None
        function = file.parent(arguments) if arguments is not None else None
        if isinstance(function, Named):
            return function
    return None


def passed_for(file: SourceFile, name: ast.Name) -> list[ast.expr]:
    """What the calls in the file pass for a parameter; empty if there are none, or if one leaves it out."""
    function = taken_by(file, name)
    passed = [given(function, call).get(name.id) for call in file.calls_of(function)[0]] if function else []
    return [] if None in passed else [value for value in passed if value is not None]


def _root(node: ast.AST | None) -> str:
    """The name of the array that an expression is or views; "" for any other expression."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def annotation(file: SourceFile, parameter: ast.arg) -> str:
    """What a parameter's annotation says of it.

    ``constant`` for `ct.Constant[…]` and names that stand for it (``constant float`` for a float), ``scalar`` for int,
    float and bool, else "".
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
