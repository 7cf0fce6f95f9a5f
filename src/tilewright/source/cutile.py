"""Kernels, launches, searches and their configurations in a file's text.

kernels(file)             functions that are kernels, with the hints of their decorator
launches(file)            calls of `ct.launch`
tasks(file)               calls of `tilewright.Task`
searches(file)            calls of `cuda.tile.tune.exhaustive_search`, argument by argument
hinted(file)              calls that make a kernel with other hints
configurations(file, …)   the records that a search space consists of
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.source.source_file import DEPTH, Function, Named, SourceFile, argument, keywords, remembered, returned

HINTS = ("num_ctas", "occupancy", "opt_level", "num_worker_warps")
KERNEL = "cuda.tile.kernel"
LAUNCH = "cuda.tile.launch"
OLD_SEARCH = ("cuda.tile_experimental.autotune_launch",)
SEARCHES = ("cuda.tile.tune.exhaustive_search", "cuda.tile.tune._tune.exhaustive_search")
WRAPPERS = {"list", "tuple", "sorted", "reversed"}
"""Calls whose result has the elements of their argument."""

Record: TypeAlias = dict[str, ast.expr]
"""One configuration: field → expression."""


@dataclass(frozen=True)
class KernelSource:
    """A function that is a kernel; ``hints`` as its decorator gives them."""

    node: Named
    hints: Mapping[str, ast.expr]

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class LaunchSite:
    """One call of `ct.launch`; ``grid``, ``kernel`` and ``arguments`` are None where a star hides them."""

    call: ast.Call
    grid: ast.expr | None
    kernel: ast.expr | None
    arguments: ast.expr | None


@dataclass(frozen=True)
class SearchSite:
    """One call of `exhaustive_search`; what is not given is None."""

    call: ast.Call
    space: ast.expr | None
    grid_fn: ast.expr | None
    kernel: ast.expr | None
    args_fn: ast.expr | None
    hints_fn: ast.expr | None

    @classmethod
    def of(cls, call: ast.Call) -> SearchSite:
        places = {0: "search_space", 2: "grid_fn", 3: "kernel", 4: "args_fn", 5: "hints_fn"}
        return cls(call, *(argument(call, place, name) for place, name in places.items()))


@dataclass(frozen=True)
class HintedKernel:
    """A call that makes a new kernel object. ``hints`` is None where they are behind two stars."""

    call: ast.Call
    kernel: ast.expr | None
    hints: Mapping[str, ast.expr] | None
    keeps: bool
    """Whether the hints that are not named stay, as with `replace_hints`."""


@remembered
def kernels(file: SourceFile) -> tuple[KernelSource, ...]:
    kernels = {}
    for node in file.functions:
        if decorator := kernel_decorator(file, node):
            kernels[node] = KernelSource(node, keywords(decorator) if isinstance(decorator, ast.Call) else {})
    for call in file.every(ast.Call):  # name = ct.kernel(function, …)
        if file.dotted(call.func) == KERNEL and call.args:
            function = file.function(call.args[0])
            if isinstance(function, Named):
                kernels.setdefault(function, KernelSource(function, keywords(call)))
    return tuple(kernels.values())


def kernel_decorator(file: SourceFile, function: Named) -> ast.expr | None:
    """The ``@ct.kernel`` of a function, with or without hints."""
    for decorator in function.decorator_list:
        if file.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) == KERNEL:
            return decorator
    return None


def kernels_of(file: SourceFile, node: ast.AST | None, depth: int = DEPTH) -> tuple[KernelSource, ...]:
    """The kernels that an expression may be, through names, conditions and changed hints.

    Empty where one of them is not known.
    """
    if not depth:
        return ()
    reached: dict[Named, KernelSource] = {}
    for value in file.values(node):
        if isinstance(value, ast.IfExp):
            arms = [kernels_of(file, arm, depth - 1) for arm in (value.body, value.orelse)]
        elif isinstance(value, ast.Call):
            hinted = as_hinted(file, value)
            arms = [kernels_of(file, hinted.kernel, depth - 1) if hinted else ()]
        else:
            arms = [tuple(kernel for kernel in kernels(file) if kernel.node is value)]
        if not all(arms):
            return ()
        reached |= {kernel.node: kernel for arm in arms for kernel in arm}
    return tuple(reached.values())


@remembered
def launches(file: SourceFile) -> tuple[LaunchSite, ...]:
    return tuple(
        LaunchSite(call, argument(call, 1, "grid"), argument(call, 2, "kernel"), argument(call, 3, "kernel_args"))
        for call in file.every(ast.Call)
        if file.dotted(call.func) == LAUNCH
    )


@remembered
def searches(file: SourceFile) -> tuple[SearchSite, ...]:
    return tuple(SearchSite.of(call) for call in file.every(ast.Call) if file.dotted(call.func) in SEARCHES)


@remembered
def hinted(file: SourceFile) -> tuple[HintedKernel, ...]:
    """Every `k.replace_hints(…)`, and every call of `ct.kernel` that does not decorate a function."""
    decorators = {decorator for function in file.functions for decorator in function.decorator_list}
    calls = (as_hinted(file, call) for call in file.every(ast.Call) if call not in decorators)
    return tuple(call for call in calls if call is not None)


def as_hinted(file: SourceFile, call: ast.Call) -> HintedKernel | None:
    """A call as one that makes a kernel object, if it is."""
    hints = None if any(keyword.arg is None for keyword in call.keywords) else keywords(call)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "replace_hints":
        return HintedKernel(call, call.func.value, hints, keeps=True)
    if file.dotted(call.func).endswith("cached_replace_hints") and call.args:
        return HintedKernel(call, call.args[0], hints, keeps=True)
    if file.dotted(call.func) != KERNEL:
        return None
    kernel = call.args[0] if call.args else None
    if isinstance(kernel, ast.Attribute) and kernel.attr == "_pyfunc":
        kernel = kernel.value
    return HintedKernel(call, kernel, hints, keeps=False)


def hints_of_kernel(file: SourceFile, kernel: ast.expr | None) -> set[str]:
    """The hints that an expression gives its kernel on the way: ``k = base.replace_hints(…)``."""
    made = (as_hinted(file, value) for value in file.values(kernel) if isinstance(value, ast.Call))
    return {name for hinted in made if hinted is not None for name in hinted.hints or ()}


def tasks(file: SourceFile) -> list[ast.Call]:
    """The calls of `tilewright.Task`."""
    return [call for call in file.every(ast.Call) if file.dotted(call.func) == "tilewright.Task"]


def passed(file: SourceFile, what: str) -> Iterator[ast.AST]:
    """What launches and searches pass as ``"grid"`` or as ``"arguments"``: each expression that it may stand for."""
    given = [launch.grid if what == "grid" else launch.arguments for launch in launches(file)]
    for search in searches(file):
        given += returned(file.function(search.grid_fn if what == "grid" else search.args_fn))
    for expression in given:
        yield from file.values(expression)


# What a search's functions give -----------------------------------------------------------------------


def given_hints(file: SourceFile, hints_fn: ast.expr | None) -> set[str] | None:
    """The hints that a ``hints_fn`` may set; None where the text does not say. Without one, none."""
    if hints_fn is None:
        return set()
    function = file.function(hints_fn)
    return None if function is None else _together(keys_of(file, value) for value in returned(function))


def keys_of(file: SourceFile, node: ast.AST | None, depth: int = DEPTH) -> set[str] | None:
    """The keys of the mapping that an expression makes; None where the text does not show them all."""
    if not depth:
        return None
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return {str(key) for key in keys} if len(keys) == len(node.keys) else None
    if isinstance(node, ast.IfExp):
        return _together(keys_of(file, arm, depth - 1) for arm in (node.body, node.orelse))
    if isinstance(node, ast.Call) and file.dotted(node.func) == "dict" and not node.args:
        return None if any(keyword.arg is None for keyword in node.keywords) else set(keywords(node))
    if isinstance(node, ast.Call) and (function := file.function(node.func)) is not None:
        return _together(keys_of(file, value, depth - 1) for value in returned(function))
    if isinstance(node, ast.Name) and (bindings := file.bindings(node.id, node)):
        starts = [keys_of(file, binding.value, depth - 1) for binding in bindings]
        return _together([*starts, *_added_keys(file, node)])
    return None


def _added_keys(file: SourceFile, name: ast.Name) -> Iterator[set[str] | None]:
    """The keys of ``name[key] = …`` in the scope of a name."""
    for subscript in file.every(ast.Subscript, file.scope(name)):
        if isinstance(subscript.ctx, ast.Store) and ast.unparse(subscript.value) == name.id:
            yield {str(subscript.slice.value)} if isinstance(subscript.slice, ast.Constant) else None


def _together(parts: Iterable[set[str] | None]) -> set[str] | None:
    """All of them; None where one is not known."""
    together: set[str] = set()
    for part in parts:
        if part is None:
            return None
        together |= part
    return together


# The configurations of a search -----------------------------------------------------------------------


def configurations(file: SourceFile, space: ast.AST | None, depth: int = DEPTH) -> Iterator[Record]:
    """The records that a search space consists of, from the list's text or its generator's.

    None where the text does not show them.
    """
    if space is None or not depth:
        return
    inner = depth - 1
    if isinstance(space, ast.Name):
        for value in file.values(space):
            yield from configurations(file, value, inner)
    elif isinstance(space, (ast.List, ast.Tuple)):
        for element in space.elts:
            yield from _record(file, element, inner)
    elif isinstance(space, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        loop = space.generators[0]
        if isinstance(space.elt, ast.Name) and ast.unparse(space.elt) == ast.unparse(loop.target):
            yield from configurations(file, loop.iter, inner)
        else:
            yield from _record(file, space.elt, inner)
    elif isinstance(space, ast.BinOp) and isinstance(space.op, ast.Add):
        yield from configurations(file, space.left, inner)
        yield from configurations(file, space.right, inner)
    elif isinstance(space, ast.Subscript) and isinstance(space.slice, ast.Slice):
        yield from configurations(file, space.value, inner)
    elif isinstance(space, ast.Call) and file.dotted(space.func) in WRAPPERS and space.args:
        yield from configurations(file, space.args[0], inner)
    elif isinstance(space, ast.Call):
        for function in file.values(space.func):
            yield from _made_by(file, function, inner)


def _made_by(file: SourceFile, function: ast.AST, depth: int) -> Iterator[Record]:
    """The records that a function yields, or those of the lists that it returns."""
    if not isinstance(function, Function):
        return
    yields = list(file.every(ast.Yield, function))
    for single in yields:
        yield from _record(file, single.value, depth)
    for several in file.every(ast.YieldFrom, function):
        yield from configurations(file, several.value, depth)
    for value in returned(function) if not yields else ():
        yield from configurations(file, value, depth)


def _record(file: SourceFile, node: ast.AST | None, depth: int) -> Iterator[Record]:
    """One configuration: a call with keywords, a dictionary, or a call of a function that makes one."""
    if not depth:
        return
    if isinstance(node, ast.Name):
        for value in file.values(node):
            yield from _record(file, value, depth - 1)
    elif isinstance(node, ast.Starred):
        yield from configurations(file, node.value, depth - 1)
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    elif isinstance(node, ast.Call):
        made_by = file.value(node.func)
        if isinstance(made_by, Function):
            for value in returned(made_by):
                yield from _record(file, value, depth - 1)
        else:
            fields = zip(_fields(made_by), node.args, strict=False)
            yield keywords(node) | dict(fields)


def _fields(cls: ast.AST | None) -> Iterator[str]:
    """The annotated names of a class, as of a dataclass."""
    for statement in cls.body if isinstance(cls, ast.ClassDef) else ():
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
