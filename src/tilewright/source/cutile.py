"""Kernels, launches and searches in a file's text.

kernels(module)     functions that are kernels, with the hints of their decorator
launches(module)    calls of `ct.launch`
searches(module)    calls of `cuda.tile.tune.exhaustive_search`, argument by argument
hinted(module)      calls that make a kernel with other hints
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.source.module import DEPTH, Module, Named, argument, keywords, once, returned

HINTS = ("num_ctas", "occupancy", "opt_level", "num_worker_warps")
KERNEL = "cuda.tile.kernel"
LAUNCH = "cuda.tile.launch"
OLD_SEARCH = ("cuda.tile_experimental.autotune_launch",)
SEARCHES = ("cuda.tile.tune.exhaustive_search", "cuda.tile.tune._tune.exhaustive_search")


@dataclass(frozen=True)
class Kernel:
    """A function that is a kernel; ``hints`` as its decorator gives them."""

    node: Named
    hints: Mapping[str, ast.expr]

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Launch:
    """``kernel`` and ``arguments`` are None where a star hides them."""

    call: ast.Call
    grid: ast.expr | None
    kernel: ast.expr | None
    arguments: ast.expr | None


@dataclass(frozen=True)
class Search:
    """One call of `exhaustive_search`; what is not given is None."""

    call: ast.Call
    space: ast.expr | None
    grid_fn: ast.expr | None
    kernel: ast.expr | None
    args_fn: ast.expr | None
    hints_fn: ast.expr | None


@dataclass(frozen=True)
class Hinted:
    """A call that makes a new kernel object. ``hints`` None: they are behind two stars."""

    call: ast.Call
    kernel: ast.expr | None
    hints: Mapping[str, ast.expr] | None
    keeps: bool
    """Whether the hints that are not named stay, as with `replace_hints`."""


@once
def kernels(module: Module) -> tuple[Kernel, ...]:
    functions = [node for node in module.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    found = [Kernel(node, hints) for node in functions if (hints := _decorated(module, node)) is not None]
    for call in module.every(ast.Call):  # name = ct.kernel(function, …)
        if module.dotted(call.func) == KERNEL and call.args:
            function = module.function(call.args[0])
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(Kernel(function, keywords(call)))
    return tuple({one.node: one for one in reversed(found)}.values())[::-1]


def _decorated(module: Module, function: Named) -> Mapping[str, ast.expr] | None:
    for decorator in function.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if module.dotted(call.func if call else decorator) == KERNEL:
            return keywords(call) if call else {}
    return None


def kernels_of(module: Module, node: ast.AST | None, depth: int = DEPTH) -> tuple[Kernel, ...]:
    """The kernels that an expression may be, through names, conditions and changed hints; empty where one of
    them is not known."""
    if node is None or not depth:
        return ()
    found: list[Kernel] = []
    for value in module.values(node):
        if isinstance(value, ast.IfExp):
            inner = [kernels_of(module, arm, depth - 1) for arm in (value.body, value.orelse)]
        elif isinstance(value, ast.Call):
            one = as_hinted(module, value)
            inner = [kernels_of(module, one.kernel, depth - 1) if one else ()]
        else:
            inner = [tuple(one for one in kernels(module) if one.node is value)]
        if not all(inner):
            return ()
        found += [one for some in inner for one in some]
    return tuple({one.node: one for one in found}.values())


@once
def launches(module: Module) -> tuple[Launch, ...]:
    return tuple(
        Launch(call, argument(call, 1, "grid"), argument(call, 2, "kernel"), argument(call, 3, "kernel_args"))
        for call in module.every(ast.Call)
        if module.dotted(call.func) == LAUNCH
    )


@once
def searches(module: Module) -> tuple[Search, ...]:
    return tuple(
        Search(
            call,
            space=argument(call, 0, "search_space"),
            grid_fn=argument(call, 2, "grid_fn"),
            kernel=argument(call, 3, "kernel"),
            args_fn=argument(call, 4, "args_fn"),
            hints_fn=argument(call, 5, "hints_fn"),
        )
        for call in module.every(ast.Call)
        if module.dotted(call.func) in SEARCHES
    )


@once
def hinted(module: Module) -> tuple[Hinted, ...]:
    """Every `k.replace_hints(…)` and every call of `ct.kernel` that is no decorator of a function."""
    found = (as_hinted(module, call) for call in module.every(ast.Call))
    return tuple(one for one in found if one is not None and not _decorates(module, one.call))


def as_hinted(module: Module, call: ast.Call) -> Hinted | None:
    """A call as one that makes a kernel object, if it is."""
    starred = any(one.arg is None for one in call.keywords)
    hints = None if starred else keywords(call)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "replace_hints":
        return Hinted(call, call.func.value, hints, keeps=True)
    if module.dotted(call.func).endswith("cached_replace_hints") and call.args:
        return Hinted(call, call.args[0], hints, keeps=True)
    if module.dotted(call.func) != KERNEL:
        return None
    given = call.args[0] if call.args else None
    if isinstance(given, ast.Attribute) and given.attr == "_pyfunc":
        given = given.value
    return Hinted(call, given, hints, keeps=False)


def _decorates(module: Module, call: ast.Call) -> bool:
    parent = module.parent(call)
    return isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and call in parent.decorator_list


def hints_of_kernel(module: Module, kernel: ast.expr | None) -> set[str]:
    """The hints that an expression gives its kernel on the way: ``k = base.replace_hints(…)``."""
    found: set[str] = set()
    for value in module.values(kernel) if kernel is not None else ():
        one = as_hinted(module, value) if isinstance(value, ast.Call) else None
        found |= set(one.hints or ()) if one is not None else set()
    return found


# What a search's functions give -----------------------------------------------------------------------


def given_hints(module: Module, hints_fn: ast.expr | None) -> set[str] | None:
    """The hints that a ``hints_fn`` may set; None where the text does not say. Without one, none."""
    if hints_fn is None:
        return set()
    function = module.function(hints_fn)
    if function is None:
        return None
    found: set[str] = set()
    for value in returned(function):
        keys = keys_of(module, value)
        if keys is None:
            return None
        found |= keys
    return found


def keys_of(module: Module, node: ast.AST, depth: int = DEPTH) -> set[str] | None:
    """The keys of a mapping that an expression makes, if the text shows them all."""
    if not depth:
        return None
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return {str(key) for key in keys} if len(keys) == len(node.keys) else None
    if isinstance(node, ast.IfExp):
        arms = [keys_of(module, arm, depth - 1) for arm in (node.body, node.orelse)]
        return None if None in arms else set().union(*(arm for arm in arms if arm))
    if isinstance(node, ast.Call) and module.dotted(node.func) == "dict" and not node.args:
        return None if any(one.arg is None for one in node.keywords) else set(keywords(node))
    if isinstance(node, ast.Call) and (function := module.function(node.func)) is not None:
        found: set[str] = set()
        for value in returned(function):
            keys_there = keys_of(module, value, depth - 1)
            if keys_there is None:
                return None
            found |= keys_there
        return found
    if isinstance(node, ast.Name):
        return _keys_of_name(module, node, depth)
    return None


def _keys_of_name(module: Module, name: ast.Name, depth: int) -> set[str] | None:
    """A local dictionary: what it starts with, and what ``name[key] = …`` adds."""
    found: set[str] = set()
    bindings = module.bindings(name.id, name)
    for binding in bindings:
        keys = keys_of(module, binding.value, depth - 1) if binding.value is not None else None
        if keys is None:
            return None
        found |= keys
    for store in module.every(ast.Subscript, module.scope(name)):
        if isinstance(store.ctx, ast.Store) and isinstance(store.value, ast.Name) and store.value.id == name.id:
            if not isinstance(store.slice, ast.Constant):
                return None
            found.add(str(store.slice.value))
    return found if bindings else None
