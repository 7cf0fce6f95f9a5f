"""Finds kernels, launches, searches and their configurations in the text of a Python file."""

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
"""Functions whose result has the same elements as their argument."""

Record: TypeAlias = dict[str, ast.expr]
"""One configuration: the expression of the value of each field."""


@dataclass(frozen=True)
class KernelSource:
    """A kernel function, with the hints that its decorator sets."""

    node: Named
    hints: Mapping[str, ast.expr]

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class LaunchSite:
    """One call of `ct.launch`. An argument is None if it is missing, or passed by a star (``*args``)."""

    call: ast.Call
    grid: ast.expr | None
    kernel: ast.expr | None
    arguments: ast.expr | None


@dataclass(frozen=True)
class SearchSite:
    """One call of `exhaustive_search`. A missing argument is None."""

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
    """A call that makes a new kernel object from ``kernel``. ``hints`` is None if the call has a ``**`` argument."""

    call: ast.Call
    kernel: ast.expr | None
    hints: Mapping[str, ast.expr] | None
    keeps: bool
    """Whether the new kernel keeps the values of hints that the call does not set, as with `replace_hints`."""


def _may_use(file: SourceFile) -> bool:
    return "cuda" in file.packages or "cuda.tile" in file.text


def _calls(file: SourceFile) -> Mapping[str, list[ast.Call]]:
    """Returns the calls of a file that may use cuTile, by the full name of what is called; else none."""
    return file.calls if _may_use(file) else {}


@remembered
def kernels(file: SourceFile) -> tuple[KernelSource, ...]:
    """Returns the functions decorated with ``@ct.kernel``, then the functions passed to a call of ``ct.kernel``."""
    kernels: dict[Named, KernelSource] = {}
    for node in file.functions if _may_use(file) else ():
        for decorator in node.decorator_list:
            hints = keywords(decorator) if isinstance(decorator, ast.Call) else {}
            if file.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) == KERNEL:
                kernels.setdefault(node, KernelSource(node, hints))
    for call in (call for call in _calls(file).get(KERNEL, ()) if call.args):
        function = file.function(call.args[0])
        if isinstance(function, Named):
            kernels.setdefault(function, KernelSource(function, keywords(call)))
    return tuple(kernels.values())


def kernels_of(file: SourceFile, node: ast.AST | None, depth: int = DEPTH) -> tuple[KernelSource, ...]:
    """Returns all kernels to which an expression may refer, through names, conditions and calls that change hints.

    Returns an empty tuple if the text does not show all of them.
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
    """Returns the calls of `ct.launch`."""
    return tuple(
        LaunchSite(call, argument(call, 1, "grid"), argument(call, 2, "kernel"), argument(call, 3, "kernel_args"))
        for call in _calls(file).get(LAUNCH, ())
    )


@remembered
def searches(file: SourceFile) -> tuple[SearchSite, ...]:
    """Returns the calls of `exhaustive_search`."""
    calls = (call for name in SEARCHES for call in _calls(file).get(name, ()))
    return tuple(map(SearchSite.of, sorted(calls, key=lambda call: (call.lineno, call.col_offset))))


@remembered
def hinted(file: SourceFile) -> tuple[HintedKernel, ...]:
    """Returns the calls of `replace_hints`, and the calls of `ct.kernel` that do not decorate a function."""
    decorators = {decorator for function in file.functions for decorator in function.decorator_list}
    calls_by_name = file.calls.items() if _may_use(file) or "replace_hints" in file.text else ()
    named = (calls for name, calls in calls_by_name if name in ("", KERNEL) or name.endswith("replace_hints"))
    made = (as_hinted(file, call) for calls in named for call in calls if call not in decorators)
    return tuple(sorted(filter(None, made), key=lambda one: (one.call.lineno, one.call.col_offset)))


def as_hinted(file: SourceFile, call: ast.Call) -> HintedKernel | None:
    """Returns ``call`` as a `HintedKernel` if it makes a kernel object; otherwise None."""
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
    """Returns the hints that were set when ``kernel`` was made, as in ``kernel = base.replace_hints(…)``."""
    made = (as_hinted(file, value) for value in file.values(kernel) if isinstance(value, ast.Call))
    return {name for hinted in made if hinted is not None for name in hinted.hints or ()}


def tasks(file: SourceFile) -> list[ast.Call]:
    """Returns the calls of `tilewright.Task`."""
    return file.calls.get("tilewright.Task", [])


def passed(file: SourceFile, what: str) -> Iterator[ast.AST]:
    """Yields the expressions that launches and searches may pass as the grid or the arguments.

    what: ``"grid"`` or ``"arguments"``.
    """
    given = [launch.grid if what == "grid" else launch.arguments for launch in launches(file)]
    for search in searches(file):
        given += returned(file.function(search.grid_fn if what == "grid" else search.args_fn))
    for expression in given:
        yield from file.values(expression)


# The results of a search's functions ------------------------------------------------------------------


def given_hints(file: SourceFile, hints_fn: ast.expr | None) -> set[str] | None:
    """Returns the names of the hints that ``hints_fn`` may set; empty without ``hints_fn``.

    Returns None if the text does not show all of these hints.
    """
    if hints_fn is None:
        return set()
    function = file.function(hints_fn)
    return None if function is None else _union(keys_of(file, value) for value in returned(function))


def keys_of(file: SourceFile, node: ast.AST | None, depth: int = DEPTH) -> set[str] | None:
    """Returns the keys of the dictionary that an expression makes; None if the text does not show them all."""
    if not depth:
        return None
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return {str(key) for key in keys} if len(keys) == len(node.keys) else None
    if isinstance(node, ast.IfExp):
        return _union(keys_of(file, arm, depth - 1) for arm in (node.body, node.orelse))
    if isinstance(node, ast.Call) and file.dotted(node.func) == "dict" and not node.args:
        return None if any(keyword.arg is None for keyword in node.keywords) else set(keywords(node))
    if isinstance(node, ast.Call) and (function := file.function(node.func)) is not None:
        return _union(keys_of(file, value, depth - 1) for value in returned(function))
    if isinstance(node, ast.Name) and (bindings := file.bindings(node.id, node)):
        starts = [keys_of(file, binding.value, depth - 1) for binding in bindings]
        return _union([*starts, *_added_keys(file, node)])
    return None


def _added_keys(file: SourceFile, name: ast.Name) -> Iterator[set[str] | None]:
    """Yields the keys of assignments ``name[key] = …`` in the scope of ``name``; None for a key that is no literal."""
    for subscript in file.every(ast.Subscript, file.scope(name)):
        if isinstance(subscript.ctx, ast.Store) and ast.unparse(subscript.value) == name.id:
            yield {str(subscript.slice.value)} if isinstance(subscript.slice, ast.Constant) else None


def _union(sets: Iterable[set[str] | None]) -> set[str] | None:
    """Returns the union of the sets; None if one of them is None."""
    union: set[str] = set()
    for keys in sets:
        if keys is None:
            return None
        union |= keys
    return union


# The configurations of a search -----------------------------------------------------------------------


def configurations(
    file: SourceFile, node: ast.AST | None, depth: int = DEPTH, *, is_list: bool = True
) -> Iterator[Record]:
    """Yields the configurations in the expression ``node`` of a search space, as far as the text shows them.

    is_list: True if ``node`` is a list or generator of configurations, False if it is one configuration.
    """
    record = None if is_list else _record(file, node)
    if record is not None:
        yield record
    elif depth:
        for part, is_inner_list in _parts(file, node, is_list):
            yield from configurations(file, part, depth - 1, is_list=is_inner_list)


def _record(file: SourceFile, node: ast.AST | None) -> Record | None:
    """Returns a dictionary or a call with keywords as a configuration; None for other nodes.

    A call of a function of this file does not count: the function may return any number of configurations.
    """
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
    made_by = file.value(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or isinstance(made_by, Function):
        return None
    return keywords(node) | dict(zip(_fields(made_by), node.args, strict=False))


def _parts(file: SourceFile, node: ast.AST | None, is_list: bool) -> Iterator[tuple[ast.AST | None, bool]]:
    """Yields the values or parts of an expression, each with a flag: True if the part is a list of configurations."""
    match node:
        case ast.Name():
            yield from ((value, is_list) for value in file.values(node))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from ((element, False) for element in elements)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            element, loop = node.elt, node.generators[0]
            same = isinstance(element, ast.Name) and ast.unparse(element) == ast.unparse(loop.target)
            yield (loop.iter, True) if same else (element, False)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from ((left, True), (right, True))
        case ast.Subscript(value=whole, slice=ast.Slice()) | ast.Starred(value=whole):
            yield whole, True
        case ast.Call(func=wrapper, args=[first, *_]) if is_list and file.dotted(wrapper) in WRAPPERS:
            yield first, True
        case ast.Call(func=called):
            for function in filter(lambda value: isinstance(value, Function), file.values(called)):
                yields = list(file.every(ast.Yield, function)) if is_list else []
                yield from ((single.value, False) for single in yields)
                yield from ((several.value, True) for several in file.every(ast.YieldFrom, function))
                yield from ((value, is_list) for value in (returned(function) if not yields else ()))


def _fields(cls: ast.AST | None) -> Iterator[str]:
    """Yields the annotated names in the body of a class, such as the fields of a dataclass."""
    for statement in cls.body if isinstance(cls, ast.ClassDef) else ():
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
