"""What a piece of tile code reads, assigns and touches in memory: enough to move it safely.

A name means the same in a whole function. Code that is not understood counts as touching everything. `reaching` says
which assignment gives a name its value at a place, where there is only one; `without_dead` removes assignments that
nothing reads after a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import libcst as cst

from tilewright.source.syntax import Function, Source, dotted, elements

Statement = TypeVar("Statement", bound=cst.CSTNode)
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
    parts: Sequence[cst.CSTNode | None]
    match node:
        case cst.Name():
            return {node.value}
        case cst.Attribute() | cst.Arg() | cst.AnnAssign() | cst.NamedExpr():
            parts = (node.value,)
        case cst.AugAssign():
            parts = (node.target, node.value)
        case cst.AssignTarget(target=cst.Name() | cst.Tuple() | cst.List()):
            parts = ()
        case cst.For():
            parts = (node.iter, node.body)
        case _:
            parts = node.children
    return {name for part in parts if part is not None for name in names_read(part)}


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


def range_of(loop: cst.CSTNode | None) -> list[cst.BaseExpression]:
    """The arguments of ``range`` in the head of a loop; empty for any other loop."""
    match loop:
        case cst.For(iter=cst.Call(func=cst.Name(value="range"), args=args)):
            return [arg.value for arg in args]
    return []


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


def values_by_name(source: Source, inside: cst.CSTNode) -> dict[str, list[cst.BaseExpression]]:
    """Each name that `assignments` finds and its values, in the order of the text."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for _, name, value in assignments(source, inside):
        found.setdefault(name, []).append(value)
    return found


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
        name, module = dotted(call.func), f"{self.source.tile_module}."
        return name.removeprefix(module) if name.startswith(module) else self.source.tile_name(name)

    def _is_pure_call(self, call: cst.Call) -> bool:
        name = self.name_of(call)
        if self.is_load(call):
            array = call.args[0].value if name in LOADS and call.args else getattr(call.func, "value", None)
            return array is not None and self.written is not None and not self._behind(array) & self.written
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
            case cst.Call() if self.name_of(node):
                return set()
            case cst.Call(func=cst.Attribute(value=value)):
                return set() if self.is_load(node) else self._views(value)
            case cst.BinaryOperation() | cst.UnaryOperation() | cst.Comparison() | cst.BooleanOperation():
                return set()
        return names_read(node)


@dataclass(frozen=True, eq=False)
class Definition:
    """The definition of a name."""

    node: cst.CSTNode
    """Where the name is defined. The same node means the same value, within one iteration of a loop."""
    value: cst.BaseExpression | None = None
    """None of a loop's variable, a parameter, a name from outside, and of an assignment such as ``+=``."""


def reaching(source: Source, name: str, at: cst.CSTNode) -> Definition | None:
    """The one definition of ``name`` that reaches ``at``; None if several may, or the code is not understood."""
    below: cst.CSTNode = at
    for above in source.parents(at):
        match above:
            case cst.SimpleStatementLine():
                if (found := _last(name, _before(above.body, below))) is not None:
                    return found
            case cst.IndentedBlock():
                for one in reversed(_before(above.body, below)):
                    if name in _bound(one):  # in a branch or a loop, it depends on which way the code went
                        if isinstance(one, cst.SimpleStatementLine):
                            return _last(name, one.body)
                        return Definition(one) if isinstance(one, cst.FunctionDef) else None
            case cst.For() if below is above.body:
                if name in target_names(above.target):
                    return Definition(above)
                if name in _bound(above.body):
                    return None
            case cst.While() if below is above.body or below is above.test:
                if name in _bound(above):
                    return None
            case cst.FunctionDef():
                if name in parameters(above):
                    return Definition(above)
                if name in _bound(above.body):
                    return None
            case cst.Lambda() | cst.GeneratorExp() | cst.ListComp():
                return None
        below = above
    return Definition(source.module)


def _before(statements: Sequence[Statement], one: cst.CSTNode) -> list[Statement]:
    places = [place for place, other in enumerate(statements) if other is one]
    return list(statements[: places[0]]) if places else []


@lru_cache(maxsize=4096)  # nodes never change, and all names of a function are followed through its statements
def _bound(statement: cst.CSTNode) -> frozenset[str]:
    if isinstance(statement, cst.FunctionDef):
        return frozenset((statement.name.value,))
    return frozenset(names_assigned(statement))


def _last(name: str, statements: Sequence[cst.BaseSmallStatement]) -> Definition | None:
    one = next((one for one in reversed(statements) if name in _bound(one)), None)
    if one is None:
        return None
    if isinstance(one, cst.AnnAssign):
        return Definition(one, one.value)
    pairs = pairs_of(one) if isinstance(one, cst.Assign) else ()
    return Definition(
        one, next((value for target, value in pairs if value is not None and dotted(target) == name), None)
    )


def without_dead(source: Source, function: str, names: Iterable[str]) -> Source:
    """The source without the assignments of those of ``names`` that ``function`` reads no longer.

    What only they read goes too. A name stays where one of its assignments does more than compute a value.
    """
    open_ = sorted(names)
    while open_:
        name = open_.pop(0)
        lines = _lines(source, function, name)
        if not lines:
            continue
        body = source.functions[function].body
        removed = body.visit(_Without(lines))
        assert isinstance(removed, cst.BaseSuite)
        effects = Effects(source, source.functions[function])
        if name in names_read(removed) or not all(effects.is_pure(line) for line in lines):
            continue
        open_ += sorted({read for line in lines for read in names_read(line)} - {name})
        source = source.changed({body: removed})
    return source


def _lines(source: Source, function: str, name: str) -> list[cst.SimpleStatementLine]:
    """All statements that assign ``name`` if each is a plain ``name = value``; otherwise none."""
    tree = source.functions[function]
    plain = []
    for line in source.every(cst.SimpleStatementLine, tree):
        match line.body:
            case [cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))])] if target == name:
                plain.append(line)
    return plain if len(plain) == names_assigned(tree)[name] else []


class _Without(cst.CSTTransformer):
    def __init__(self, lines: list[cst.SimpleStatementLine]) -> None:
        super().__init__()
        self.lines = lines

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        kept: list[cst.BaseStatement] = []
        above: list[cst.EmptyLine] = []
        for before, one in zip(original_node.body, updated_node.body, strict=True):
            if isinstance(before, cst.SimpleStatementLine) and before in self.lines:
                above += before.leading_lines
                if before.trailing_whitespace.comment is not None:
                    above.append(cst.EmptyLine(comment=before.trailing_whitespace.comment))
            else:
                kept.append(one.with_changes(leading_lines=[*above, *getattr(one, "leading_lines", ())]))
                above = []
        return updated_node.with_changes(body=kept, footer=[*above, *updated_node.footer]) if kept else updated_node
