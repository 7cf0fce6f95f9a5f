"""Finds the addresses and masks of the loads and stores in a Triton kernel, from its text.

An address is read as a sum: a pointer, products of integers, and for each axis of the tile a stride times the element's
position. `Walk` reads the statements in order. If each iteration of a loop adds the same amount to a pointer, the
pointer's value is the first value plus the number of iterations times the amount. Values that are not such a sum get
the form None (`triton_forms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, pairs_of, target_names
from tilewright.playbook.analyses.index_forms import ONE, Scalar
from tilewright.playbook.analyses.tile_shapes import new_axes
from tilewright.playbook.analyses.triton_code import tl_call
from tilewright.playbook.analyses.triton_forms import (
    ZERO,
    Form,
    Known,
    Lane,
    Mask,
    Names,
    expanded,
    inserted_axis,
    mapped,
    total_of,
)
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number

_SAME = ("max_contiguous", "multiple_of")
_SCALARS = ("program_id", "num_programs", "cdiv", "minimum", "maximum")
_SCALAR_BUILTINS = ("min", "max", "triton.cdiv")
RANGES = ("range", "static_range")
Statement: TypeAlias = cst.BaseStatement


@dataclass(frozen=True)
class PointerAccess:
    """One load or store through a pointer.

    path: the statements around the access, from the outermost to the innermost.
    """

    call: cst.Call
    kind: str
    pointer: Known
    mask: Known
    path: tuple[Statement, ...]


@dataclass
class Walk:
    """Reads one function. Finds its loads and stores (``accesses``), and the values of its names ``before`` each
    statement."""

    source: Source
    function: Function
    accesses: list[PointerAccess] = field(default_factory=list)
    before: dict[Statement, Names] = field(default_factory=dict)
    nonnegative: set[str] = field(default_factory=set)
    """The names and calls whose values cannot be negative."""
    wide: set[str] = field(default_factory=set)
    """The names and calls whose values have 64 bits."""

    ends: dict[str, tuple[Scalar, Scalar]] = field(default_factory=dict)
    """Maps the variable of each loop that starts from 0 to the end and the step of the loop."""

    def __post_init__(self) -> None:
        self._counter = count(1)
        self.values: dict[str, Known] = {}
        self.numbers: dict[str, int] = {}
        for param in self.function.params.params:
            if param.annotation is not None and "constexpr" in self.source.code(param.annotation.annotation):
                self.nonnegative.add(param.name.value)
        self._block(self.function.body, ())

    # Statements -----------------------------------------------------------------------------------

    def _block(self, body: cst.BaseSuite, path: tuple[Statement, ...]) -> None:
        for statement in body.body:
            if isinstance(statement, cst.BaseStatement):
                self.before[statement] = Names(dict(self.values), dict(self.numbers))
                self._statement(statement, (*path, statement))

    def _statement(self, statement: Statement, path: tuple[Statement, ...]) -> None:
        match statement:
            case cst.SimpleStatementLine():
                for small in statement.body:
                    self._accesses(small, path)
                    self._assign(small)
            case cst.For():
                self._accesses(statement.iter, path)
                self._loop(statement, path)
            case cst.If():
                self._accesses(statement.test, path)
                values, numbers = dict(self.values), dict(self.numbers)
                self._block(statement.body, path)
                self.values, self.numbers = values, numbers
                if isinstance(statement.orelse, cst.Else):
                    self._block(statement.orelse.body, path)
                elif statement.orelse is not None:
                    self._statement(statement.orelse, path)
                self._forget(statement)
            case _:
                self._forget(statement)
                for part in self.source.every(cst.BaseSuite, statement):  # type: ignore[type-abstract]
                    if self.source.parent(part) is statement:
                        self._block(part, path)
                self._forget(statement)

    def _loop(self, loop: cst.For, path: tuple[Statement, ...]) -> None:
        steps = self._advanced(loop)
        first = {name: self.value(cst.Name(name)) for name in steps}
        self._forget(loop)
        turn = self._turn(loop)
        for name, amount in steps.items():
            start = first[name]
            if turn is not None and isinstance(start, Form):
                moved = turn(amount.start)
                self.values[name] = None if moved is None else total_of(start, Form(moved))
        self._block(loop.body, path)
        self._forget(loop)

    def _advanced(self, loop: cst.For) -> dict[str, Form]:
        """Maps names to the amount that every iteration adds to them. It is added once, and is the same in all
        iterations."""
        changed, found = names_assigned(loop.body), {}
        for line in loop.body.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                name, added = _advance(small)
                if changed[name] == 1 and added is not None and not _names(added) & set(changed):
                    amount = self.value(added)
                    if (
                        isinstance(amount, Form)
                        and not amount.axes
                        and not set(target_names(loop.target)) & _names(added)
                    ):
                        found[name] = amount
        return found

    def _turn(self, loop: cst.For) -> Callable[[Scalar], Scalar | None] | None:
        """Binds the loop's variable. Returns a function that multiplies a scalar by the number of finished
        iterations."""
        called = loop.iter
        if not isinstance(called, cst.Call) or not isinstance(loop.target, cst.Name):
            return None
        if dotted(called.func) not in RANGES and tl_call(self.source, called) not in RANGES:
            return None
        given = [arg.value for arg in called.args if arg.keyword is None]
        first = self.value(given[0]) if len(given) > 1 else Form(ZERO)
        step = self.value(given[2]) if len(given) > 2 else Form(ONE)
        name = loop.target.value
        if not (isinstance(first, Form) and isinstance(step, Form)) or first.axes or step.axes or not _plus(step.start):
            self.values[name] = None
            return None
        atom = self._new(name)
        if self.not_negative(first.start) and self.not_negative(step.start):
            self.nonnegative.add(atom)
        index, by = Scalar({(atom,): 1}), step.start
        end = self.value(given[min(len(given) - 1, 1)]) if given else None
        if isinstance(end, Form) and not end.axes and not first.start.terms:
            self.ends[atom] = (end.start, by)
        self.values[name] = Form(index, (), atom)

        def turns(amount: Scalar) -> Scalar | None:
            times, rest = amount.over(by)
            return None if rest.terms else times * (index + -first.start)

        return turns if len(by.terms) == 1 else None

    def _assign(self, statement: cst.BaseSmallStatement) -> None:
        match statement:
            case cst.Assign():
                pairs = list(pairs_of(statement))
                found = [(target, value, self.value(value) if value is not None else None) for target, value in pairs]
                for target, value, known in found:
                    if isinstance(target, cst.Name):
                        self._bind(target.value, value, known)
                    else:
                        self._forget_names(target_names(target))
            case cst.AnnAssign(target=cst.Name(value=name), value=value) if value is not None:
                self._bind(name, value, self.value(value))
            case cst.AugAssign(target=cst.Name(value=name)):
                _, added = _advance(statement)
                amount = self.value(added) if added is not None else None
                before = self.value(statement.target)
                self._new(name)
                both = isinstance(before, Form) and isinstance(amount, Form)
                self.values[name] = total_of(before, amount) if both else None  # type: ignore[arg-type]
            case _:
                self._forget(statement)

    def _bind(self, name: str, value: Expression | None, known: Known) -> None:
        """Binds a name to its value. If a call or a division computes the value, sums contain the name itself, not its
        value."""
        atom = self._new(name)
        if (
            isinstance(known, Form)
            and not known.axes
            and value is not None
            and (known.lead == "" or _is_made(self.source, value))
        ):
            if self.not_negative(known.start):
                self.nonnegative.add(atom)
            if any(text in self.wide for term in known.start.terms for text in term):
                self.wide.add(atom)
            if _is_made(self.source, value):
                known = Form(Scalar({(atom,): 1}), (), atom)
        elif known is None and value is not None and self._is_loaded_scalar(value):
            known = Form(Scalar({(atom,): 1}), (), atom)
        self.values[name] = known

    def _is_loaded_scalar(self, value: Expression) -> bool:
        if not isinstance(value, cst.Call) or tl_call(self.source, value) != "load" or not value.args:
            return False
        pointer = self.value(value.args[0].value)
        return isinstance(pointer, Form) and not pointer.axes

    def _new(self, name: str) -> str:
        self.numbers[name] = next(self._counter)
        return f"{name}·{self.numbers[name]}"

    def _forget(self, node: cst.CSTNode) -> None:
        self._forget_names(names_assigned(node))

    def _forget_names(self, names: Iterator[str] | Mapping[str, int]) -> None:
        for name in names:
            self._new(name)
            self.values[name] = None

    def _accesses(self, node: cst.CSTNode, path: tuple[Statement, ...]) -> None:
        for call in self.source.every(cst.Call, node):
            kind = tl_call(self.source, call)
            if kind in ("load", "store") and (pointer := argument(call, "pointer", 0)) is not None:
                mask = argument(call, "mask", 1 if kind == "load" else 2)
                known = None if mask is None or dotted(mask) == "None" else self.value(mask)
                self.accesses.append(PointerAccess(call, kind, self.value(pointer), known, path))

    # Expressions ----------------------------------------------------------------------------------

    def value(self, node: Expression) -> Known:
        """Returns an expression as a `Form` or a `Mask`, from the present values of its names. A form is a sum with a
        stride for each axis. Returns None for any other expression."""
        match node:
            case cst.Integer():
                return Form(Scalar({(): node.evaluated_value}) if node.evaluated_value else ZERO)
            case cst.Name():
                if node.value in self.numbers:
                    return self.values.get(node.value)
                return Form(Scalar({(node.value,): 1}), (), node.value)
            case cst.BinaryOperation(operator=cst.BitAnd()):
                left, right = self.value(node.left), self.value(node.right)
                return Mask(left.parts + right.parts) if isinstance(left, Mask) and isinstance(right, Mask) else None
            case cst.BinaryOperation():
                left, right = self.value(node.left), self.value(node.right)
                return (
                    self._operation(node, left, right) if isinstance(left, Form) and isinstance(right, Form) else None
                )
            case cst.UnaryOperation(operator=cst.Minus()):
                inside = self.value(node.expression)
                return Form(-inside.start) if isinstance(inside, Form) and not inside.axes else None
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=operator, comparator=right)]):
                return self._compared(operator, self.value(left), self.value(right))
            case cst.Subscript():
                inside, added = self.value(node.value), new_axes(node)
                return None if added is None else mapped(inside, lambda form: expanded(form, added))
            case cst.Call():
                return self._call(node)
        return None

    def _operation(self, node: cst.BinaryOperation, left: Form, right: Form) -> Form | None:
        match node.operator:
            case cst.Add():
                return total_of(left, right)
            case cst.Subtract():
                return None if right.axes else total_of(left, Form(-right.start))
            case cst.Multiply() if not (left.axes and right.axes):
                many, by = (left, right) if left.axes else (right, left)
                axes = tuple(lane and replace(lane, step=lane.step * by.start) for lane in many.axes)
                return Form(left.start * right.start, axes)
            case cst.Modulo() if left.axes and not right.axes:
                match left.axes:
                    case [Lane(step=step, wrapped=None) as lane] if step == ONE:
                        return Form(ZERO, (replace(lane, wrapped=(left.start, right.start)),))
                return None
            case cst.Modulo() | cst.FloorDivide() if not left.axes and not right.axes:
                return self._atom(node, self.not_negative(left.start))
        return None

    def _atom(self, node: Expression, nonnegative: bool, wide: bool = False) -> Form:
        """Returns a scalar of one term: the text of the whole expression. Each assigned name in it gets the number of
        its assignment (`triton_forms`)."""
        named = node.visit(_Numbered(self.numbers))
        assert isinstance(named, cst.BaseExpression)
        text = " ".join(self.source.code(named).split())
        if isinstance(node, cst.BinaryOperation) and not node.lpar:
            text = f"({text})"
        if nonnegative:
            self.nonnegative.add(text)
        if wide:
            self.wide.add(text)
        return Form(Scalar({(text,): 1}))

    def _call(self, node: cst.Call) -> Known:
        name, origin = tl_call(self.source, node), self.source.origin(dotted(node.func))
        first = node.args[0].value if node.args else None
        if name == "arange":
            size = self.value(node.args[1].value) if len(node.args) == 2 and number(first) == 0 else None
            return Form(ZERO, (Lane(ONE, size.start),)) if isinstance(size, Form) and not size.axes else None
        if name in _SAME and first is not None:
            return self.value(first)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "to" and not name and first is not None:
            inside = self.value(node.func.value)
            bits = {"triton.language.int64": True, "triton.language.int32": False}.get(
                self.source.origin(dotted(first))
            )
            if not isinstance(inside, Form) or bits is None or inside.axes:
                return inside if bits is not None else None
            return self._atom(node, self.not_negative(inside.start), bits)
        if name == "expand_dims" and len(node.args) == 2 and isinstance(axis := number(node.args[1].value), int):
            return mapped(self.value(node.args[0].value), lambda form: inserted_axis(form, axis))
        if name in _SCALARS or origin in _SCALAR_BUILTINS:
            given = [self.value(arg.value) for arg in node.args]
            known = [form.start for form in given if isinstance(form, Form) and not form.axes]
            if len(known) < len(given):
                return None
            return self._atom(node, name in _SCALARS[:2] or all(map(self.not_negative, known)))
        return None

    def _compared(self, operator: cst.BaseCompOp, left: Known, right: Known) -> Mask | None:
        if isinstance(operator, cst.GreaterThan):
            left, right = right, left
        elif not isinstance(operator, cst.LessThan):
            return None
        if not isinstance(left, Form) or not isinstance(right, Form) or right.axes:
            return None
        return Mask(((left, right.start),))

    def not_negative(self, value: Scalar) -> bool:
        """Returns whether a value is 0 or more, as far as the text shows it. A constexpr is assumed to be 0 or more."""
        return _plus(value) and all(text in self.nonnegative for term in value.terms for text in term)


class _Numbered(cst.CSTTransformer):
    """Appends the number of its assignment to each assigned name: ``row·2`` for ``row``."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        super().__init__()
        self.numbers = numbers

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self.attribute = node.attr

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        if original_node is getattr(self, "attribute", None) or original_node.value not in self.numbers:
            return updated_node
        return updated_node.with_changes(value=f"{original_node.value}·{self.numbers[original_node.value]}")


def _plus(value: Scalar) -> bool:
    return all(factor > 0 for factor in value.terms.values())


def _names(node: cst.CSTNode) -> set[str]:
    found = {node.value} if isinstance(node, cst.Name) else set()
    return found.union(*(_names(child) for child in node.children))


def _advance(small: cst.BaseSmallStatement) -> tuple[str, Expression | None]:
    """Returns the name and the amount of ``p += n`` or ``p = p + n``."""
    match small:
        case cst.AugAssign(target=cst.Name(value=name), operator=cst.AddAssign(), value=added):
            return name, added
        case cst.Assign(
            targets=[cst.AssignTarget(target=cst.Name(value=name))],
            value=cst.BinaryOperation(left=cst.Name(value=same), operator=cst.Add(), right=added),
        ) if name == same:
            return name, added
    return "", None


def _is_made(source: Source, value: Expression) -> bool:
    """Returns whether a value contains a call or a division. The name of such a value is shorter than its text."""
    operations = source.every(cst.BinaryOperation, value)
    divided = any(isinstance(each.operator, (cst.FloorDivide, cst.Modulo)) for each in operations)
    return divided or bool(source.every(cst.Call, value))
