"""Finds the names that a piece of tile code reads and assigns, and the arrays that it accesses.

Entries use the results to move code safely. Code that is not understood counts as accessing every array. `reaching`
finds the assignment that gives a name its value at a place.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import TypeVar

import libcst as cst

from tilewright.source.syntax import Expression, Function, Line, Source, dotted, elements

Node = TypeVar("Node", bound=cst.CSTNode)
LOOPS = (cst.For, cst.While)
LOADS = ("load", "gather", "load_advanced_indexing")
_IMPURE = (
    "store", "scatter", "store_advanced_indexing", "atomic_add", "atomic_and", "atomic_cas", "atomic_max",
    "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "print", "printf", "assert_", "launch",
    "grid_dependency_control_wait", "grid_dependency_control_launch_dependents", "static_assert",
)  # fmt: skip
"""Functions of cuda.tile with effects other than their result."""
_PURE_METHODS = (
    "astype", "reshape", "permute", "transpose", "item", "slice", "tiled_view", "extract", "insert", "num_tiles",
    "load", "from_foreign",
)  # fmt: skip
_PURE_BUILTINS = ("abs", "bool", "float", "int", "len", "max", "min", "pow", "range", "sum", "tuple")


def names_read(node: cst.CSTNode) -> set[str]:
    """Returns the names whose values ``node`` uses. Names that ``node`` only assigns are left out."""
    read, waiting = set[str](), [node]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is cst.Name:
            read.add(node.value)  # type: ignore[attr-defined]
        elif kind is cst.AssignTarget and type(node.target) in (cst.Name, cst.Tuple, cst.List):  # type: ignore[attr-defined]
            pass
        else:
            waiting += _parts(node, *_READ.get(kind, ()))
    return read


_READ: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.Attribute: ("value",), cst.Arg: ("value",), cst.AnnAssign: ("value",), cst.NamedExpr: ("value",),
    cst.For: ("iter", "body"),
}  # fmt: skip
"""The fields that may read names, for node types with other fields that only assign or define a name."""
_TARGET: dict[type[cst.CSTNode], str] = {
    cst.AssignTarget: "target", cst.AugAssign: "target", cst.AnnAssign: "target", cst.For: "target",
    cst.NamedExpr: "target", cst.AsName: "name",
}  # fmt: skip


@lru_cache(maxsize=4096)  # nodes never change, and all names of a function are followed through its statements
def names_assigned(node: cst.CSTNode) -> Mapping[str, int]:
    """Counts how often the text of ``node`` assigns each name; 0 for any other name."""
    found: Counter[str] = Counter()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if target := _TARGET.get(type(node)):
            found.update(target_names(getattr(node, target)))
        waiting += reversed(_parts(node))
    return found


def _parts(node: cst.CSTNode, *names: str) -> list[cst.CSTNode]:
    """Returns the nodes in these fields of a node; by default in all fields that may hold a name. `CSTNode.children`
    takes ten times as long, because it makes a new node."""
    parts: list[cst.CSTNode] = []
    for name in names or _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, (list, tuple)):
            parts += value
        elif isinstance(value, cst.CSTNode):
            parts.append(value)
    return parts


@cache
def _fields(kind: type[cst.CSTNode]) -> list[str]:
    names = [field.name for field in fields(kind)]
    return [name for name in names if "whitespace" not in name and name not in ("leading_lines", "lpar", "rpar")]


def target_names(node: cst.CSTNode) -> Iterator[str]:
    """Yields the names in the target of an assignment or a loop."""
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from target_names(element.value)


def parameters(function: Function | cst.Lambda) -> list[str]:
    listed = function.params
    return [param.name.value for param in (*listed.posonly_params, *listed.params, *listed.kwonly_params)]


def loops_around(source: Source, node: cst.CSTNode) -> int:
    """Counts the loops around ``node``."""
    return sum(isinstance(above, LOOPS) for above in source.parents(node))


def breaks_of(source: Source, loop: cst.For) -> list[cst.Break]:
    """Returns the statements that end ``loop`` itself, not a loop inside it."""
    found = source.every(cst.Break, loop)
    return [each for each in found if next(a for a in source.parents(each) if isinstance(a, LOOPS)) is loop]


def range_of(loop: cst.CSTNode | None) -> list[Expression]:
    """Returns the arguments of ``range`` in the header of a loop; empty for any other loop."""
    match loop:
        case cst.For(iter=cst.Call(func=cst.Name(value="range"), args=args)):
            return [arg.value for arg in args]
    return []


def pairs_of(assign: cst.Assign) -> Iterator[tuple[Expression, Expression | None]]:
    """Yields each target of an assignment with its own value: ``(a, x)`` and ``(b, y)`` for ``a, b = x, y``.

    The value is None if the targets unpack the result of one expression: ``a, b = f()``.
    """
    for assigned in assign.targets:
        targets, values = elements(assigned.target), elements(assign.value)
        if targets is None:
            yield assigned.target, assign.value
        else:
            known = values is not None and len(values) == len(targets)
            yield from zip(targets, values if known and values else [None] * len(targets), strict=True)


def dependent(source: Source, function: Function, roots: Iterable[str]) -> set[str]:
    """Returns the names of ``function`` whose value depends on a name in ``roots``, directly or through other names."""
    found = set(roots)
    pieces = [
        (set(names_assigned(assign)), names_read(assign))
        for kind in (cst.Assign, cst.AugAssign, cst.AnnAssign)
        for assign in source.every(kind, function)
    ]
    pieces += [(set(target_names(loop.target)), names_read(loop.iter)) for loop in source.every(cst.For, function)]
    while more := {name for assigned, read in pieces if read & found for name in assigned} - found:
        found |= more
    return found


def assignments(source: Source, inside: cst.CSTNode) -> Iterator[tuple[Line, str, Expression]]:
    """Yields statement, name and value of each plain assignment: ``a = x`` and both parts of ``a, b = x, y``."""
    for line in source.every(Line, inside):
        if len(line.body) == 1 and isinstance(line.body[0], cst.Assign) and len(line.body[0].targets) == 1:
            for target, value in pairs_of(line.body[0]):
                if isinstance(target, cst.Name) and value is not None:
                    yield line, target.value, value


def assignments_at_top(source: Source) -> Iterator[tuple[Line, str, Expression]]:
    """As `assignments`, for the statements of the file that stand in no function, class or branch."""
    return (each for each in assignments(source, source.module) if source.parent(each[0]) is source.module)


def counted_indices(source: Source, function: Function) -> Iterator[tuple[cst.For, Line, str, Expression]]:
    """Yields each ``name = base + variable`` in a loop over ``range(…)`` that reads its variable nowhere else: loop,
    statement, name and base. The base does not change in the loop, and nothing else assigns the name."""
    counted = names_assigned(function)
    for loop in source.every(cst.For, function):
        variable, changing = dotted(loop.target), set(names_assigned(loop))
        uses = [name for name in source.every(cst.Name, function) if name.value == variable]
        if len(range_of(loop)) not in (1, 2) or len(uses) != 2 or counted[variable] != 1:
            continue
        for line, name, value in assignments(source, loop):
            alone = source.parent(line) is loop.body and len(names_assigned(line)) == counted[name] == 1
            if alone and isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
                for base, other in ((value.left, value.right), (value.right, value.left)):
                    if dotted(other) == variable and not names_read(base) & changing:
                        yield loop, line, name, base


def values_by_name(source: Source, inside: cst.CSTNode) -> dict[str, list[Expression]]:
    """Returns each name that `assignments` finds, with its values in the order of the text."""
    found: dict[str, list[Expression]] = {}
    for _, name, value in assignments(source, inside):
        found.setdefault(name, []).append(value)
    return found


class Effects:
    """Tells whether the code of one function reads or writes memory, and which arrays.

    ``written`` holds the names of the arrays that the function may store to; None if that is not known.
    """

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function
        self._origins: dict[str, set[str]] = {}
        for assign in source.every(cst.Assign, function):
            for name in names_assigned(assign):
                self._origins.setdefault(name, set()).update(self._views(assign.value))
        self.written = self._written()

    def is_pure(self, node: cst.CSTNode) -> bool:
        """Returns whether ``node`` only computes values, and loads only from arrays that the function never writes."""
        return all(self._is_pure_call(call) for call in self.source.every(cst.Call, node))

    def stores_nothing(self, node: cst.CSTNode) -> bool:
        """Returns whether ``node`` only computes values and loads, from any array."""
        return all(self.is_load(call) or self._is_pure_call(call) for call in self.source.every(cst.Call, node))

    def arrays_of(self, name: str) -> set[str]:
        """Returns ``name`` and the arrays that ``name`` may be a view of."""
        found, pending = set(), [name]
        while pending:
            array = pending.pop()
            if array not in found:
                found.add(array)
                pending += self._origins.get(array, ())
        return found

    def arrays_behind(self, node: Expression) -> set[str]:
        """Returns the arrays that ``node`` may be, or be a view of."""
        return {array for name in self._views(node) for array in self.arrays_of(name)}

    def is_load(self, call: cst.Call) -> bool:
        """Returns whether a call loads from an array, or from a view of an array."""
        return self.name_of(call) in LOADS or (
            isinstance(call.func, cst.Attribute) and call.func.attr.value in ("load", "load_offset")
            and dotted(call.func.value) != self.source.tile_module
        )  # fmt: skip

    def loads(self, node: cst.CSTNode) -> bool:
        """Returns whether ``node`` loads from an array, also in functions of the file that it calls."""
        called, functions = {dotted(call.func) for call in self.source.every(cst.Call, node)}, self.source.functions
        places = (node, *(functions[name] for name in self.source.called_by(called & functions.keys())))
        return any(self.is_load(call) for place in places for call in self.source.every(cst.Call, place))

    def name_of(self, call: cst.Call) -> str:
        """Returns the called function's name in cuda.tile; "" for any other function."""
        name, module = dotted(call.func), f"{self.source.tile_module}."
        return name.removeprefix(module) if name.startswith(module) else self.source.tile_name(name)

    def _is_pure_call(self, call: cst.Call) -> bool:
        name, called = self.name_of(call), dotted(call.func)
        if self.is_load(call):
            array = call.args[0].value if name in LOADS and call.args else getattr(call.func, "value", None)
            return array is not None and self.written is not None and not self.arrays_behind(array) & self.written
        if name:
            return name not in _IMPURE
        if called in self.source.functions:
            if self._calls_this(called):
                return False
            inner = Effects(self.source, self.source.functions[called])
            return not inner.loads(inner.function) and inner.is_pure(inner.function.body)
        if isinstance(call.func, cst.Attribute):
            return call.func.attr.value in _PURE_METHODS
        return called in _PURE_BUILTINS

    def _calls_this(self, name: str) -> bool:
        """Returns whether a function of the file calls the function of these effects, perhaps through others."""
        return self.function.name.value in self.source.called_by([name])

    def _written(self) -> set[str] | None:
        written: set[str] = set()
        for call in self.source.every(cst.Call, self.function.body):
            name, called = self.name_of(call), dotted(call.func)
            if name.startswith(("store", "scatter", "atomic")):
                written |= self.arrays_behind(call.args[0].value) if call.args else set()
            elif name in _IMPURE:
                continue  # the call prints or waits, and writes no array
            elif not name and called in self.source.functions:
                if self._calls_this(called):
                    return None
                if Effects(self.source, self.source.functions[called]).written != set():
                    written |= {array for arg in call.args for array in self.arrays_behind(arg.value)}
            elif not name and isinstance(call.func, cst.Attribute):
                if call.func.attr.value not in _PURE_METHODS:
                    written |= self.arrays_behind(call.func.value)
            elif not name and called not in _PURE_BUILTINS:
                return None
        return written

    def _views(self, node: Expression) -> set[str]:
        """Returns the arrays that ``node`` may be a view of; empty for a tile, which is loaded or computed."""
        match node:
            case cst.Name():
                return {node.value}
            case cst.Attribute() | cst.Subscript():
                return self._views(node.value)
            case cst.IfExp():
                return self._views(node.body) | self._views(node.orelse)
            case cst.Tuple() | cst.List():
                return {name for element in node.elements for name in self._views(element.value)}
            case cst.Call() if dotted(node.func) in self.source.functions:
                return {name for arg in node.args for name in self._views(arg.value)}
            case cst.Call(func=cst.Attribute(attr=cst.Name(value="from_foreign"))):
                return {name for arg in node.args[:1] for name in self._views(arg.value)}
            case cst.Call() if self.name_of(node):
                return set()
            case cst.Call(func=cst.Attribute(value=value)):
                return set() if self.is_load(node) else self._views(value)
            case cst.BinaryOperation() | cst.UnaryOperation() | cst.Comparison() | cst.BooleanOperation():
                return set()
        return names_read(node)


@dataclass(frozen=True, eq=False)
class Definition:
    """The ``node`` that gives a name its value: an assignment, a loop, or the function itself for a parameter.

    Within one iteration of a loop, the same ``node`` means the same value. ``value`` is the assigned expression. It is
    None for a loop's variable, a parameter, a name from outside the function, and an assignment such as ``+=``.
    """

    node: cst.CSTNode
    value: Expression | None = None


def reaching(source: Source, name: str, at: cst.CSTNode) -> Definition | None:
    """Returns the only definition of ``name`` that reaches ``at``.

    None if several definitions may reach ``at``, or if the code is not understood.
    """
    below: cst.CSTNode = at
    for above in source.parents(at):
        match above:
            case Line():
                if (found := _last(name, _before(above.body, below))) is not None:
                    return found
            case cst.IndentedBlock():
                for statement in reversed(_before(above.body, below)):
                    if name not in _bound(statement):
                        continue
                    if isinstance(statement, Line):
                        return _last(name, statement.body)
                    # A definition inside a branch or a loop might not run.
                    return Definition(statement) if isinstance(statement, cst.FunctionDef) else None
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


def _before(statements: Sequence[Node], node: cst.CSTNode) -> list[Node]:
    return list(itertools.takewhile(lambda statement: statement is not node, statements))


def _bound(statement: cst.CSTNode) -> Collection[str]:
    return (statement.name.value,) if isinstance(statement, cst.FunctionDef) else names_assigned(statement)


def _last(name: str, statements: Sequence[cst.BaseSmallStatement]) -> Definition | None:
    """Returns the last definition of ``name`` among the statements of one line."""
    statement = next((each for each in reversed(statements) if name in _bound(each)), None)
    if statement is None:
        return None
    if isinstance(statement, cst.AnnAssign):
        return Definition(statement, statement.value)
    pairs = pairs_of(statement) if isinstance(statement, cst.Assign) else ()
    return Definition(statement, next((value for target, value in pairs if value and dotted(target) == name), None))
