"""What a piece of tile code reads, assigns and touches in memory: enough to move it safely.

A name means the same in a whole function. Code that is not understood counts as touching everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import libcst as cst

from tilewright.source.syntax import Function, Source, dotted, elements

LOOPS = (cst.For, cst.While)
LOADS = ("load", "gather", "load_advanced_indexing")
_IMPURE = (
    "store", "scatter", "store_advanced_indexing", "atomic_add", "atomic_and", "atomic_cas", "atomic_max",
    "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "print", "printf", "assert_", "launch",
    "grid_dependency_control_wait", "grid_dependency_control_launch_dependents", "static_assert",
)  # fmt: skip
"""Functions of cuda.tile that do more than compute a value."""
_PURE_METHODS = (
    "astype", "reshape", "permute", "transpose", "item", "slice", "tiled_view", "extract", "insert", "num_tiles",
    "load",
)  # fmt: skip
_PURE_BUILTINS = ("abs", "bool", "float", "int", "len", "max", "min", "pow", "range", "sum", "tuple")


def names_read(node: cst.CSTNode) -> set[str]:
    """The names whose values ``node`` uses; what it only assigns is not among them."""
    return set(_reads(node))


def _reads(node: cst.CSTNode) -> Iterator[str]:
    match node:
        case cst.Name():
            yield node.value
        case cst.Attribute():
            yield from _reads(node.value)
        case cst.Arg():
            yield from _reads(node.value)
        case cst.AugAssign():
            yield from _reads(node.target)
            yield from _reads(node.value)
        case cst.AssignTarget():
            if not isinstance(node.target, (cst.Name, cst.Tuple, cst.List)):
                yield from _reads(node.target)
        case cst.AnnAssign():
            if node.value is not None:
                yield from _reads(node.value)
        case cst.For():
            yield from _reads(node.iter)
            yield from _reads(node.body)
        case cst.NamedExpr():
            yield from _reads(node.value)
        case _:
            for child in node.children:
                yield from _reads(child)


def names_assigned(node: cst.CSTNode) -> Counter[str]:
    """The names that ``node`` gives a value, and how often in the text."""
    return Counter(_assigned(node))


def _assigned(node: cst.CSTNode) -> Iterator[str]:
    match node:
        case cst.AssignTarget() | cst.AugAssign() | cst.AnnAssign() | cst.For() | cst.NamedExpr():
            yield from target_names(node.target)
        case cst.AsName():
            yield from target_names(node.name)
    for child in node.children:
        yield from _assigned(child)


def target_names(node: cst.CSTNode) -> Iterator[str]:
    """The names in the target of an assignment or a loop."""
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Tuple, cst.List)):
        for one in node.elements:
            yield from target_names(one.value)


def parameters(function: Function | cst.Lambda) -> list[str]:
    """The names of a function's parameters."""
    listed = function.params
    return [one.name.value for one in (*listed.posonly_params, *listed.params, *listed.kwonly_params)]


def loops_around(source: Source, node: cst.CSTNode) -> int:
    """How many loops ``node`` stands in."""
    return sum(isinstance(above, LOOPS) for above in source.parents(node))


def pairs_of(assign: cst.Assign) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Each target of an assignment with its own value: two of ``a, b = x, y``; None where a call gives several."""
    for one in assign.targets:
        targets, values = elements(one.target), elements(assign.value)
        if targets is None:
            yield one.target, assign.value
        else:
            known = values is not None and len(values) == len(targets)
            yield from zip(targets, values if known and values else [None] * len(targets), strict=True)


def dependent(source: Source, function: Function, roots: Iterable[str]) -> set[str]:
    """The names of ``function`` whose value depends on one of ``roots``, directly or through others and loops."""
    found = set(roots)
    pieces = [
        (set(names_assigned(one)), names_read(one))
        for kind in (cst.Assign, cst.AugAssign, cst.AnnAssign)
        for one in source.every(kind, function)
    ]
    pieces += [(set(target_names(one.target)), names_read(one.iter)) for one in source.every(cst.For, function)]
    while True:
        more = {name for written, read in pieces if read & found for name in written} - found
        if not more:
            return found
        found |= more


def assignments(
    source: Source, inside: cst.CSTNode
) -> Iterator[tuple[cst.SimpleStatementLine, str, cst.BaseExpression]]:
    """Statements that assign names alone and one value to each: ``a = x`` and ``a, b = x, y``."""
    for line in source.every(cst.SimpleStatementLine, inside):
        if len(line.body) == 1 and isinstance(line.body[0], cst.Assign) and len(line.body[0].targets) == 1:
            for target, value in pairs_of(line.body[0]):
                if isinstance(target, cst.Name) and value is not None:
                    yield line, target.value, value


class Effects:
    """What the code of one function may do to memory."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function
        self._origins: dict[str, set[str]] = {}
        for one in source.every(cst.Assign, function):
            for name in names_assigned(one):
                self._origins.setdefault(name, set()).update(self._views(one.value))
        self.written = self._written()
        """Names of the arrays that may be stored to; None where that cannot be told."""

    def is_pure(self, node: cst.CSTNode) -> bool:
        """Whether ``node`` computes values alone, and loads only from arrays that the function never writes."""
        return all(self._is_pure_call(call) for call in self.source.every(cst.Call, node))

    def stores_nothing(self, node: cst.CSTNode) -> bool:
        """Whether ``node`` computes values and loads, also from arrays that the function writes."""
        return all(self.is_load(call) or self._is_pure_call(call) for call in self.source.every(cst.Call, node))

    def arrays_of(self, name: str) -> set[str]:
        """``name`` and the arrays that it may be a view of."""
        found, open_ = set(), [name]
        while open_:
            one = open_.pop()
            if one not in found:
                found.add(one)
                open_ += self._origins.get(one, ())
        return found

    def is_load(self, call: cst.Call) -> bool:
        """Whether a call loads from an array or from a view of one."""
        return self.name_of(call) in LOADS or (
            isinstance(call.func, cst.Attribute) and call.func.attr.value in ("load", "load_offset")
            and dotted(call.func.value) != self.source.tile_module
        )  # fmt: skip

    def name_of(self, call: cst.Call) -> str:
        """The name in cuda.tile of what is called; "" of anything else."""
        name = dotted(call.func)
        module = f"{self.source.tile_module}."
        if name.startswith(module):
            return name.removeprefix(module)
        return self.source.tile_name(name)

    def _is_pure_call(self, call: cst.Call) -> bool:
        name = self.name_of(call)
        if self.is_load(call):
            array = call.args[0].value if name in LOADS and call.args else getattr(call.func, "value", None)
            return array is not None and self._is_never_written(array)
        if name:
            return name not in _IMPURE
        called = dotted(call.func)
        if called in self.source.functions:
            inner = Effects(self.source, self.source.functions[called])
            loads = any(inner.is_load(one) for one in self.source.every(cst.Call, inner.function))
            return not loads and inner.is_pure(inner.function.body)
        if isinstance(call.func, cst.Attribute):
            return call.func.attr.value in _PURE_METHODS
        return called in _PURE_BUILTINS

    def _is_never_written(self, array: cst.BaseExpression) -> bool:
        if self.written is None:
            return False
        return not any(self.arrays_of(name) & self.written for name in self._views(array))

    def _written(self) -> set[str] | None:
        written: set[str] = set()
        for call in self.source.every(cst.Call, self.function.body):
            name, called = self.name_of(call), dotted(call.func)
            if name.startswith(("store", "scatter", "atomic")):
                written |= self._behind(call.args[0].value) if call.args else set()
            elif name in _IMPURE:
                continue  # it prints or waits, and writes no array
            elif not name and called in self.source.functions:
                if Effects(self.source, self.source.functions[called]).written != set():
                    written |= {one for arg in call.args for one in self._behind(arg.value)}
            elif not name and isinstance(call.func, cst.Attribute):
                if call.func.attr.value not in _PURE_METHODS:
                    written |= self._behind(call.func.value)
            elif not name and called not in _PURE_BUILTINS:
                return None
        return written

    def _behind(self, node: cst.BaseExpression) -> set[str]:
        return {one for name in self._views(node) for one in self.arrays_of(name)}

    def _views(self, node: cst.BaseExpression) -> set[str]:
        """The names of arrays that ``node`` may be a view of; empty for a tile, which is loaded or computed."""
        match node:
            case cst.Name():
                return {node.value}
            case cst.Attribute() | cst.Subscript():
                return self._views(node.value)
            case cst.IfExp():
                return self._views(node.body) | self._views(node.orelse)
            case cst.Tuple() | cst.List():
                return {name for one in node.elements for name in self._views(one.value)}
            case cst.Call() if dotted(node.func) in self.source.functions:
                return {name for arg in node.args for name in self._views(arg.value)}
            case cst.Call() if isinstance(node.func, cst.Attribute) and not self.name_of(node):
                return set() if self.is_load(node) else self._views(node.func.value)
            case cst.BinaryOperation() | cst.UnaryOperation() | cst.Comparison() | cst.BooleanOperation():
                return set()
            case cst.Call() if self.name_of(node):
                return set()
        return names_read(node)
