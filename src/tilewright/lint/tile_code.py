"""Code that runs on the device: kernels and the functions they call; and which arrays each reads and writes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.source.cutile import kernels
from tilewright.source.source_file import DEPTH, Named, SourceFile, parameters, remembered

READS = {"load", "gather", "load_advanced_indexing", "load_offset"}
WRITES = {"store", "scatter", "store_advanced_indexing", "store_offset"}
VIEWS = {"slice", "tiled_view", "get_raw_memory"}


@remembered
def tile_functions(file: SourceFile) -> tuple[Named, ...]:
    """Kernels, functions that say they are tile functions, and all that these call in this file."""
    found: dict[Named, None] = {kernel.node: None for kernel in kernels(file)}
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                call = decorator.func if isinstance(decorator, ast.Call) else decorator
                if file.dotted(call) == "cuda.tile.function" and "host=True" not in ast.unparse(decorator):
                    found[node] = None
    waiting = list(found)
    while waiting:
        for call in file.every(ast.Call, waiting.pop()):
            called = file.function(call.func)
            if isinstance(called, ast.FunctionDef) and called not in found:
                found[called] = None
                waiting.append(called)
    return tuple(found)


def in_tile_code(file: SourceFile, node: ast.AST) -> bool:
    """Whether ``node`` stands in the body of a tile function."""
    functions = set(tile_functions(file))
    return any(parent in functions for parent, _ in file.above(node))


def operation(file: SourceFile, call: ast.Call) -> str:
    """``load`` for `ct.load(…)`; "" for what is no operation of cuTile."""
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


@remembered
def _accesses_of_all(file: SourceFile) -> dict[Named, Accesses]:
    return {}


def accesses(file: SourceFile, function: Named, depth: int = DEPTH) -> Accesses:
    """What a tile function does with the arrays that it is given, through functions of this file as well."""
    known = _accesses_of_all(file)
    if function not in known and depth:
        known[function] = Accesses()  # a function that calls itself adds nothing
        known[function] = _accesses(file, function, depth)
    return known.get(function, Accesses())


def _accesses(file: SourceFile, function: Named, depth: int) -> Accesses:
    found = Accesses()
    arrays = {one.arg: one.arg for one in parameters(function)}
    for node in file.every(ast.Assign, function):  # view = array.slice(…)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            root = _root(node.value)
            if root in arrays:
                arrays[node.targets[0].id] = arrays[root]
    for call in file.every(ast.Call, function):
        named = operation(file, call)
        method = call.func.attr if isinstance(call.func, ast.Attribute) and not named else ""
        if named and call.args:
            _note(found, named, arrays.get(_root(call.args[0])), call)
        elif method and isinstance(call.func, ast.Attribute):
            _note(found, method, arrays.get(_root(call.func.value)), call)
        called = file.function(call.func)
        if isinstance(called, ast.FunctionDef) and called is not function:
            _pass_on(found, accesses(file, called, depth - 1), given(called, call), arrays, call)
    return found


def _note(found: Accesses, operation: str, array: str | None, call: ast.Call) -> None:
    if array is None:
        return
    if operation in READS:
        found.read.setdefault(array, []).append(call)
    elif operation in WRITES:
        found.written.setdefault(array, []).append(call)
    elif operation.startswith("atomic_"):
        found.added.setdefault(array, []).append(call)


def _pass_on(
    found: Accesses, inner: Accesses, passed: Mapping[str, ast.expr], arrays: Mapping[str, str], call: ast.Call
) -> None:
    for outer, there in ((found.read, inner.read), (found.written, inner.written), (found.added, inner.added)):
        for parameter in there:
            array = arrays.get(_root(passed[parameter])) if parameter in passed else None
            if array is not None:
                outer.setdefault(array, []).append(call)


def _exclusive(file: SourceFile, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places stand in opposite arms of a condition."""
    arms = {parent: child in parent.body for parent, child in file.above(one) if isinstance(parent, ast.If)}
    return any(
        isinstance(parent, ast.If) and parent in arms and arms[parent] != (child in parent.body)
        for parent, child in file.above(other)
    )


def given(function: Named, call: ast.Call) -> dict[str, ast.expr]:
    """Parameter → what a call passes for it."""
    found: dict[str, ast.expr] = {}
    for parameter, value in zip(parameters(function), call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        found[parameter.arg] = value
    return found | {one.arg: one.value for one in call.keywords if one.arg is not None}


def taken_by(file: SourceFile, name: ast.Name) -> Named | None:
    """The function of which a name is a parameter; it may be one around the function that reads it."""
    for binding in file.bindings(name.id, name):
        arguments = file.parent(binding.place) if binding.kind == "parameter" else None
        function = file.parent(arguments) if arguments is not None else None
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return function
    return None


def passed_for(file: SourceFile, name: ast.Name) -> list[ast.expr]:
    """What the file's own calls pass for a parameter; empty where there are none, or one leaves it out."""
    function = taken_by(file, name)
    if function is None:
        return []
    passed = [given(function, call) for call in file.calls_of(function)[0]]
    return [one[name.id] for one in passed] if all(name.id in one for one in passed) else []


def _root(node: ast.AST) -> str:
    """The array that an expression is, or is a view of; "" for any other."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def annotation(file: SourceFile, parameter: ast.arg) -> str:
    """``constant`` for `ct.Constant[…]` and names that stand for it (``constant float`` where it is one),
    ``scalar`` for int, float and bool, else ""."""
    if parameter.annotation is None:
        return ""
    node: ast.AST = parameter.annotation
    if isinstance(node, ast.Name) and (meant := file.value(node)) is not None:
        node = meant
    base = node.value if isinstance(node, ast.Subscript) else node
    dotted = file.dotted(base)
    if dotted.endswith(("Constant", "ConstantAnnotation")) or dotted.rpartition(".")[2].startswith("Const"):
        written = f"{ast.unparse(parameter.annotation)} {ast.unparse(node)}".lower()
        return "constant float" if "float" in written else "constant"
    return "scalar" if dotted in {"int", "float", "bool"} else ""
