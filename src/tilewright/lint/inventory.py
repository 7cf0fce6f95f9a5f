"""Lists what a file holds: kernels, launches, registrations, search spaces, searches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.source.cutile import OLD_SEARCH, WRAPPERS, kernels, launches, searches
from tilewright.source.source_file import SourceFile, text

What: TypeAlias = Literal["kernel", "launch", "registration", "space", "search"]
MOST = 60
"""Characters of source that name a thing without a name of its own."""


@dataclass(frozen=True)
class InventoryItem:
    """One thing in a file.

    ``name`` is that of the kernel with its hints, of the launched or searched kernel, of the registered operation, or
    of the function or variable that makes a search space.
    """

    what: What
    line: int
    name: str
    function: str
    """The function around it; "" at the top of the file."""


def inventory(file: SourceFile) -> tuple[InventoryItem, ...]:
    """Everything of these kinds, in the order of the text."""
    items = set()
    for what, node, name in _things(file):
        owner = file.owner(node)
        items.add(InventoryItem(what, getattr(node, "lineno", 1), name, owner.name if owner is not None else ""))
    return tuple(sorted(items, key=lambda item: (item.line, item.what, item.name)))


def _things(file: SourceFile) -> Iterator[tuple[What, ast.AST, str]]:
    for kernel in kernels(file):
        hints = ", ".join(f"{name}={text(value)}" for name, value in kernel.hints.items())
        yield "kernel", kernel.node, f"{kernel.name}({hints})" if hints else kernel.name
    for launch in launches(file):
        yield "launch", launch.call, _short(launch.kernel)
    for call in file.every(ast.Call):
        if file.dotted(call.func) in OLD_SEARCH:
            yield "launch", call, "autotune_launch"
    for search in searches(file):
        yield "search", search.call, _short(search.kernel)
        for place, name in _makers(file, search.space, 4):
            yield "space", place, name
    for function in file.every(ast.FunctionDef):
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and file.dotted(decorator.func).endswith("register_impl"):
                operation = decorator.args[0] if decorator.args else None
                name = str(operation.value) if isinstance(operation, ast.Constant) else _short(operation)
                yield "registration", function, f"{name} → {function.name}"


def _short(node: ast.AST | None) -> str:
    return text(node)[:MOST] if node is not None else "?"


def _makers(file: SourceFile, node: ast.AST | None, depth: int) -> Iterator[tuple[ast.AST, str]]:
    """Where the configurations of a search are made: a function, a name, or the list itself."""
    if node is None or not depth:
        return
    if isinstance(node, ast.Call) and file.dotted(node.func) in WRAPPERS and node.args:
        yield from _makers(file, node.args[0], depth)
    elif isinstance(node, ast.Call):
        made_by = [value for value in file.values(node.func) if isinstance(value, ast.FunctionDef)]
        yield from ((function, function.name) for function in made_by)
        if not made_by:
            yield node, _short(node.func)
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        yield from _makers(file, node.generators[0].iter, depth - 1)
    elif isinstance(node, ast.Name):
        bindings = file.bindings(node.id, node)
        for binding in bindings:
            if isinstance(binding.value, (ast.Call, ast.Name, ast.ListComp)) and binding.kind == "value":
                yield from _makers(file, binding.value, depth - 1)
            else:
                yield binding.place, node.id
        if not bindings:
            yield node, node.id
    else:
        yield node, _short(node)
