"""What a file holds: kernels, launches, registrations, configuration generators, searches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.source.cutile import OLD_SEARCH, WRAPPERS, kernels, launches, searches
from tilewright.source.source_file import SourceFile, text

What: TypeAlias = Literal["kernel", "launch", "registration", "space", "search"]
MOST = 60
"""Characters of source that stand for a thing without a name."""


@dataclass(frozen=True)
class InventoryItem:
    """One of them. ``name``: the kernel or its hints, what is launched, the operation that is registered, the
    function or name that makes a space, the kernel that is searched."""

    what: What
    line: int
    name: str
    function: str
    """The function around it; "" at the top of the file."""


def inventory(file: SourceFile) -> tuple[InventoryItem, ...]:
    """Everything of these kinds, in the order of the text."""
    found = {*_kernels(file), *_launches(file), *_registrations(file), *_searches(file), *_spaces(file)}
    return tuple(sorted(found, key=lambda item: (item.line, item.what, item.name)))


def _item(file: SourceFile, what: What, node: ast.AST, name: str) -> InventoryItem:
    owner = file.owner(node)
    return InventoryItem(what, getattr(node, "lineno", 1), name, owner.name if owner is not None else "")


def _short(node: ast.AST | None) -> str:
    return text(node)[:MOST] if node is not None else "?"


def _kernels(file: SourceFile) -> Iterator[InventoryItem]:
    for kernel in kernels(file):
        hints = ", ".join(f"{name}={text(value)}" for name, value in kernel.hints.items())
        yield _item(file, "kernel", kernel.node, f"{kernel.name}({hints})" if hints else kernel.name)


def _launches(file: SourceFile) -> Iterator[InventoryItem]:
    for launch in launches(file):
        yield _item(file, "launch", launch.call, _short(launch.kernel))
    for call in file.every(ast.Call):
        if file.dotted(call.func) in OLD_SEARCH:
            yield _item(file, "launch", call, "autotune_launch")


def _registrations(file: SourceFile) -> Iterator[InventoryItem]:
    for node in file.every(ast.FunctionDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and file.dotted(decorator.func).endswith("register_impl"):
                operation = decorator.args[0] if decorator.args else None
                name = str(operation.value) if isinstance(operation, ast.Constant) else _short(operation)
                yield _item(file, "registration", node, f"{name} → {node.name}")


def _searches(file: SourceFile) -> Iterator[InventoryItem]:
    for search in searches(file):
        yield _item(file, "search", search.call, _short(search.kernel))


def _spaces(file: SourceFile) -> Iterator[InventoryItem]:
    """Where the configurations of each search are made: a function, a name, or the list itself."""
    for search in searches(file):
        for place, name in _makers(file, search.space, 4):
            yield _item(file, "space", place, name)


def _makers(file: SourceFile, node: ast.AST | None, depth: int) -> Iterator[tuple[ast.AST, str]]:
    if node is None or not depth:
        return
    if isinstance(node, ast.Call) and file.dotted(node.func) in WRAPPERS and node.args:
        yield from _makers(file, node.args[0], depth)
    elif isinstance(node, ast.Call):
        made_by = [value for value in file.values(node.func) if isinstance(value, ast.FunctionDef)]
        yield from ((one, one.name) for one in made_by)
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
