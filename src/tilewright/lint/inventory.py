"""What a file holds (P-04): kernels, launches, registrations, configuration generators, searches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.source.cutile import OLD_SEARCH, kernels, launches, searches
from tilewright.source.hints import WRAPPERS
from tilewright.source.module import Module, text

What: TypeAlias = Literal["kernel", "launch", "registration", "space", "search"]
MOST = 60
"""Characters of source that stand for a thing without a name."""


@dataclass(frozen=True)
class Item:
    """One of them. ``name``: the kernel or its hints, what is launched, the operation that is registered, the
    function or name that makes a space, the kernel that is searched."""

    what: What
    line: int
    name: str
    function: str
    """The function around it; "" at the top of the file."""


def inventory(module: Module) -> tuple[Item, ...]:
    """Everything of these kinds, in the order of the text."""
    found = {*_kernels(module), *_launches(module), *_registrations(module), *_searches(module), *_spaces(module)}
    return tuple(sorted(found, key=lambda item: (item.line, item.what, item.name)))


def _item(module: Module, what: What, node: ast.AST, name: str) -> Item:
    owner = module.owner(node)
    return Item(what, getattr(node, "lineno", 1), name, owner.name if owner is not None else "")


def _short(node: ast.AST | None) -> str:
    return text(node)[:MOST] if node is not None else "?"


def _kernels(module: Module) -> Iterator[Item]:
    for kernel in kernels(module):
        hints = ", ".join(f"{name}={text(value)}" for name, value in kernel.hints.items())
        yield _item(module, "kernel", kernel.node, f"{kernel.name}({hints})" if hints else kernel.name)


def _launches(module: Module) -> Iterator[Item]:
    for launch in launches(module):
        yield _item(module, "launch", launch.call, _short(launch.kernel))
    for call in module.every(ast.Call):
        if module.dotted(call.func) in OLD_SEARCH:
            yield _item(module, "launch", call, "autotune_launch")


def _registrations(module: Module) -> Iterator[Item]:
    for node in module.every(ast.FunctionDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and module.dotted(decorator.func).endswith("register_impl"):
                operation = decorator.args[0] if decorator.args else None
                name = str(operation.value) if isinstance(operation, ast.Constant) else _short(operation)
                yield _item(module, "registration", node, f"{name} → {node.name}")


def _searches(module: Module) -> Iterator[Item]:
    for search in searches(module):
        yield _item(module, "search", search.call, _short(search.kernel))


def _spaces(module: Module) -> Iterator[Item]:
    """Where the configurations of each search are made: a function, a name, or the list itself."""
    for search in searches(module):
        for place, name in _makers(module, search.space, 4):
            yield _item(module, "space", place, name)


def _makers(module: Module, node: ast.AST | None, depth: int) -> Iterator[tuple[ast.AST, str]]:
    if node is None or not depth:
        return
    if isinstance(node, ast.Call) and module.dotted(node.func) in WRAPPERS and node.args:
        yield from _makers(module, node.args[0], depth)
    elif isinstance(node, ast.Call):
        made_by = [value for value in module.values(node.func) if isinstance(value, ast.FunctionDef)]
        yield from ((one, one.name) for one in made_by)
        if not made_by:
            yield node, _short(node.func)
    elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        yield from _makers(module, node.generators[0].iter, depth - 1)
    elif isinstance(node, ast.Name):
        bindings = module.bindings(node.id, node)
        for binding in bindings:
            if isinstance(binding.value, (ast.Call, ast.Name, ast.ListComp)) and binding.kind == "value":
                yield from _makers(module, binding.value, depth - 1)
            else:
                yield binding.place, node.id
        if not bindings:
            yield node, node.id
    else:
        yield node, _short(node)
