"""Shows that an iteration of a loop changes nothing if a tile in it is hidden, by computing with what is known of it.

    score hidden           low (minus infinity)
    higher = max(m, score)     m
    part = exp(score - higher)     zero
    fade = exp(m - higher)     one
    total = mma(part, v, total * fade)     total
    m = higher     m

The maximum m must be above minus infinity already, scales must be positive, and values finite: zero times infinity is
no zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import LEAVING
from tilewright.playbook.analyses.dataflow import (
    LOOPS,
    Effects,
    names_assigned,
    names_read,
    pairs_of,
    reaching,
    target_names,
)
from tilewright.playbook.analyses.masked_tiles import LOW, ZERO, MaskedTile, hidden_constant, negated
from tilewright.playbook.analyses.tile_shapes import new_axes, rearranged, tile_call
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number

ONE, OTHER, UNKNOWN = "one", "other", "unknown"
"""`OTHER`: a value that does not depend on the hidden tile, so it is not minus infinity."""
_OLD = "value of "
_SPREAD = ("expand_dims", "broadcast_to")
_TURNED = ("transpose", "permute", "cat", "extract")
_SIGNS = {"Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "MatrixMultiply": "@"}
_CALLED = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "matmul": "@"}
LEAST_FACTOR = 0.05
"""-10000 times this number is still low (`LOWEST`)."""


def changed_names(source: Source, function: Function, loop: cst.For, hidden: MaskedTile) -> dict[str, str] | None:
    """Returns the names that may have another value after an iteration in which ``hidden`` is hidden, and that value.

    None if the iteration may store, or end the loop.
    """
    leaves = any(source.every(kind, loop.body) for kind in (*LEAVING, cst.While))
    if leaves or not Effects(source, function).stores_nothing(loop.body):
        return None
    run = _Iteration(source, hidden)
    run.block(loop.body)
    return {name: value for name, value in run.values.items() if value != _OLD + name}


def carried(source: Source, loop: cst.For) -> set[str]:
    """Returns the names that the loop assigns, and that an iteration may read from the one before."""
    return {name for name in names_assigned(loop.body) if _first_use(loop.body.body, name) == _READ}


def read_outside(source: Source, function: Function, loop: cst.For) -> set[str]:
    """Returns the names that the loop assigns and that are read after it, or in a loop around it."""
    around = any(isinstance(above, LOOPS) for above in source.parents(loop))
    own, start = set(names_assigned(loop)), source.place(loop)
    apart: list[cst.CSTNode] = [loop, *(() if around else _other_branches(source, loop))]
    inside = {id(name) for node in apart for name in source.every(cst.Name, node)}
    names = (name for name in source.every(cst.Name, function) if name.value in own and id(name) not in inside)
    return {
        name.value for name in names
        if is_read(source, name) and (around or source.place(name) > start) and not _is_new(source, name, loop)
    }  # fmt: skip


def _other_branches(source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields the branches that do not run if ``node`` runs: the ``else`` of each ``if`` whose body holds it."""
    for above in source.parents(node):
        if isinstance(above, cst.If) and node is above.body and above.orelse is not None:
            yield above.orelse
        node = above


def is_read(source: Source, name: cst.Name) -> bool:
    """Returns whether a name in the text is read there: not assigned, and no keyword or attribute."""
    match source.parent(name):
        case cst.AssignTarget() | cst.Param():
            return False
        case cst.Arg(keyword=keyword) if keyword is name:
            return False
        case cst.Attribute(attr=attr) if attr is name:
            return False
    return True


def _is_new(source: Source, name: cst.Name, loop: cst.For) -> bool:
    """Returns whether a name after the loop holds a value that was assigned after the loop."""
    found = reaching(source, name.value, name)
    return (
        found is not None
        and isinstance(found.node, cst.BaseSmallStatement)
        and (source.place(found.node) > source.place(loop) and loop not in source.parents(found.node))
    )


_READ, _ASSIGNED, _NEITHER = "read", "assigned", "neither"


def read_later(source: Source, statement: cst.CSTNode, name: str) -> bool:
    """Returns whether the value that ``name`` has after a statement may be read."""
    below = statement
    for above in source.parents(statement):
        if isinstance(above, cst.IndentedBlock):
            use = _first_use(above.body[above.body.index(below) + 1 :], name)
        else:
            again = isinstance(above, cst.For) and _first_use(above.body.body, name) == _READ
            use = _READ if again or (isinstance(above, cst.While) and name in names_read(above)) else _NEITHER
        if use != _NEITHER:
            return use == _READ
        if isinstance(above, cst.FunctionDef):
            return False
        below = above
    return False


def _first_use(statements: Sequence[cst.CSTNode], name: str) -> str:
    """Returns what statements do first with ``name``. Those that may assign it, or not, do neither."""
    settled: list[tuple[Expression, bool]] = []  # the branches that assigned the name, by the test and its outcome
    for statement in statements:
        if isinstance(statement, cst.If):
            use = _READ if name in names_read(statement.test) else _of_branches(statement, name, settled)
        elif isinstance(statement, cst.For):
            inside = _first_use(statement.body.body, name) == _READ and name not in target_names(statement.target)
            use = _READ if inside or name in names_read(statement.iter) else _NEITHER
        elif name in names_read(statement):
            use = _READ
        else:
            settled = [each for each in settled if not names_read(each[0]) & set(names_assigned(statement))]
            assigns = isinstance(statement, (cst.SimpleStatementLine, cst.BaseSmallStatement))
            use = _ASSIGNED if assigns and names_assigned(statement)[name] else _NEITHER
        if use != _NEITHER:
            return use
    return _NEITHER


def _of_branches(statement: cst.If, name: str, settled: list[tuple[Expression, bool]]) -> str:
    """As `_first_use`, for the branches of a statement. Those with the test of an earlier one run when that did."""
    uses = [_first_use(statement.body.body, name)]
    match statement.orelse:
        case cst.Else():
            uses.append(_first_use(statement.orelse.body.body, name))
        case cst.If():
            uses.append(_of_branches(statement.orelse, name, []))
        case _:
            uses.append(_NEITHER)
    for place, outcome in enumerate((True, False)):
        if any(test.deep_equals(statement.test) and outcome == known for test, known in settled):
            uses[place] = _ASSIGNED
    changed = names_assigned(statement)
    settled[:] = [each for each in settled if not names_read(each[0]) & set(changed)]
    if not names_read(statement.test) & set(changed):
        settled += [
            (statement.test, outcome) for outcome, use in zip((True, False), uses, strict=True) if use == _ASSIGNED
        ]
    return _READ if _READ in uses else uses[0] if uses[0] == uses[1] else _NEITHER


@dataclass
class _Iteration:
    """One iteration. ``values``: what each assigned name holds: a constant, or the old value of a name."""

    source: Source
    hidden: MaskedTile
    values: dict[str, str] = field(default_factory=dict)

    def block(self, body: cst.BaseSuite) -> None:
        for statement in body.body:
            match statement:
                case cst.SimpleStatementLine():
                    for part in statement.body:
                        self._small(part)
                case cst.If():
                    self._branch(statement)
                case _:
                    self._forget(names_assigned(statement))

    def _small(self, statement: cst.BaseSmallStatement) -> None:
        match statement:
            case cst.Assign():
                values = [
                    (target, UNKNOWN if value is None else self.of(value)) for target, value in pairs_of(statement)
                ]
                for target, value in values:
                    if isinstance(target, cst.Name):
                        self.values[target.value] = value
                    else:
                        self._forget(names_assigned(statement))
            case cst.AugAssign(target=cst.Name(value=name)):
                sign = _SIGNS.get(type(statement.operator).__name__.removesuffix("Assign"), "")
                value = self._computed(sign, self._name(name), self._factor(sign, statement.value))
                low = self._is_low(statement.target) or self._may_be_low(statement.value)
                self.values[name] = OTHER if value == UNKNOWN and not low else value
            case _:
                self._forget(names_assigned(statement))

    def _branch(self, statement: cst.If) -> None:
        test = self.source.code(statement.test)
        if test in self.hidden.guards:
            return self.block(statement.body)
        if negated(test) in self.hidden.guards and isinstance(statement.orelse, cst.Else):
            return self.block(statement.orelse.body)
        before = dict(self.values)
        self.block(statement.body)
        taken, self.values = self.values, before
        match statement.orelse:
            case cst.Else():
                self.block(statement.orelse.body)
            case cst.If():
                self._branch(statement.orelse)
        for name in {*taken, *self.values}:
            if taken.get(name, _OLD + name) != self.values.get(name, _OLD + name):
                self.values[name] = UNKNOWN
        return None

    def _forget(self, names: Collection[str]) -> None:
        self.values.update(dict.fromkeys(names, UNKNOWN))

    def _name(self, name: str) -> str:
        return self.values.get(name, _OLD + name)

    def of(self, node: Expression) -> str:
        """Returns what an expression holds."""
        value = self._of(node)
        return OTHER if value == UNKNOWN and not self._may_be_low(node) else value

    def _may_be_low(self, node: Expression) -> bool:
        inside = self.source.every(cst.BaseExpression, node)  # type: ignore[type-abstract]
        return any(each is self.hidden.node or self._is_low(each) for each in inside)

    def _is_low(self, node: Expression) -> bool:
        held = self._name(node.value) if isinstance(node, cst.Name) else ""
        return held in (LOW, UNKNOWN) or hidden_constant(self.source, node) == LOW

    def _factor(self, sign: str, node: Expression) -> str:
        """As `of`; but a small or negative factor does not keep a number low."""
        return UNKNOWN if sign == "*" and (number(node) or 1) < LEAST_FACTOR else self.of(node)

    def _of(self, node: Expression) -> str:
        if node is self.hidden.node:
            return self.hidden.hides
        if number(node) == 1:
            return ONE
        if isinstance(node, cst.Name) and node.value in self.values:
            return self.values[node.value]
        if (constant := hidden_constant(self.source, node)) is not None:
            return constant
        match node:
            case cst.Name():
                return _OLD + node.value
            case cst.UnaryOperation(operator=cst.Minus()):
                return ZERO if self.of(node.expression) == ZERO else UNKNOWN
            case cst.BinaryOperation():
                sign = _SIGNS.get(type(node.operator).__name__, "")
                return self._computed(sign, self._factor(sign, node.left), self._factor(sign, node.right))
            case cst.IfExp():
                both = {self.of(node.body), self.of(node.orelse)}
                return both.pop() if len(both) == 1 else UNKNOWN
            case cst.Subscript() if new_axes(node) is not None:
                return self.of(node.value)
            case cst.Call():
                return self._called(node)
        return UNKNOWN

    def _computed(self, sign: str, left: str, right: str) -> str:
        either = {left, right}
        match sign:
            case "+" if ZERO in either:
                return right if left == ZERO else left
            case "-" if right == ZERO:
                return left
            case "-" if left == right and left.startswith(_OLD):
                return ZERO
            case "*" | "@" if ZERO in either and LOW not in either:
                return ZERO
            case "*" if ONE in either:
                return right if left == ONE else left
            case "/" if left == ZERO != right or right == ONE:
                return left
            case "+" if LOW in either and UNKNOWN not in either:
                return LOW
            case "*" if LOW in either and len(either) == 2 and UNKNOWN not in either:
                return LOW
            case "-" if left == LOW and right not in (LOW, UNKNOWN):
                return LOW
        return UNKNOWN

    def _called(self, node: cst.Call) -> str:
        tile = tile_call(self.source, node)
        name = tile or dotted(node.func)
        if (inside := rearranged(self.source, node)) is not None:
            return self.of(inside)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _TURNED and not tile:
            return self._turned(node.func.value)
        given = [self.of(arg.value) for arg in node.args if arg.keyword is None]
        first, second = (*given, UNKNOWN, UNKNOWN)[:2]
        if name in _CALLED:
            return self._computed(_CALLED[name], first, second)
        if name in _SPREAD:
            return first
        if name in _TURNED and node.args:
            return self._turned(node.args[0].value)
        if name in ("exp", "exp2"):
            return {LOW: ZERO, ZERO: ONE}.get(first, UNKNOWN)
        if name == "mma" and (total := argument(node, "acc", 2)) is not None:
            return self.of(total) if ZERO in (first, second) else UNKNOWN
        if name == "maximum" or (name == "max" and not tile):
            if LOW in (first, second) and first != second:
                return second if first == LOW else first
            return first if first == second else UNKNOWN
        if name in ("max", "sum"):
            return first if first == ZERO or (name == "max" and first == LOW) else UNKNOWN
        if name == "where" and len(given) == 3 and given[1] == given[2]:
            return second
        return UNKNOWN

    def _turned(self, node: Expression) -> str:
        value = self.of(node)
        return UNKNOWN if value.startswith(_OLD) else value
