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
from tilewright.playbook.analyses.triton_text import Numbered, advance, is_made, names_in, plus
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
    highest: dict[str, Scalar] = field(default_factory=dict)
    """Maps the variable of each loop that counts down to its first value."""
    quotients: dict[str, tuple[Scalar, Scalar]] = field(default_factory=dict)
    """Maps each name or text of a quotient to its dividend and divisor."""

    def __post_init__(self) -> None:
        self._counter = count(1)
        self._open = list[Function]()  # the helper functions that are being read
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
                name, added = advance(small)
                if changed[name] == 1 and added is not None and not names_in(added) & set(changed):
                    amount = self.value(added)
                    if (
                        isinstance(amount, Form)
                        and not amount.axes
                        and not set(target_names(loop.target)) & names_in(added)
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
        if not (isinstance(first, Form) and isinstance(step, Form)) or first.axes or step.axes:
            self.values[name] = None
            return None
        atom = self._new(name)
        index, by = Scalar({(atom,): 1}), step.start
        done = index + -first.start
        if down := plus(-by):
            done, by = -done, -by
            self.highest[atom] = first.start
        elif not plus(by):
            self.values[name] = None
            return None
        end = self.value(given[min(len(given) - 1, 1)]) if given else None
        if isinstance(end, Form) and not end.axes and not first.start.terms:
            self.ends[atom] = (end.start, by)
        if self.not_negative(by) and (end == Form(ZERO) if down else self.not_negative(first.start)):
            self.nonnegative.add(atom)
        self.values[name] = Form(index, (), atom)

        def turns(amount: Scalar) -> Scalar | None:
            times, rest = amount.over(by)
            return None if rest.terms else times * done

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
                _, added = advance(statement)
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
            and (known.lead == "" or is_made(self.source, value))
        ):
            if self.not_negative(known.start):
                self.nonnegative.add(atom)
            if any(text in self.wide for term in known.start.terms for text in term):
                self.wide.add(atom)
            if is_made(self.source, value):
                if known.start.text in self.quotients:
                    self.quotients[atom] = self.quotients[known.start.text]
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
                made = self._atom(node, self.not_negative(left.start))
                if isinstance(node.operator, cst.FloorDivide):
                    self.quotients[made.start.text] = left.start, right.start
                return made
        return None

    def _atom(self, node: Expression, nonnegative: bool, wide: bool = False) -> Form:
        """Returns a scalar of one term: the text of the whole expression. Each assigned name in it gets the number of
        its assignment (`triton_forms`)."""
        named = node.visit(Numbered(self.numbers))
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
        helper = self.source.functions.get(dotted(node.func))
        return None if helper is None else self._inlined(node, helper)

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
        if plus(value):
            return all(text in self.nonnegative for term in value.terms for text in term)
        return any(self.not_negative(rest) for rest in self._without_remainder(value))

    def _without_remainder(self, value: Scalar) -> Iterator[Scalar]:
        """Yields ``value`` without a part that is not negative.

        Such a part is a multiple of ``a - a // b * b``, or of ``n - i`` for a loop in which i counts down from n.
        """
        for term, factor in value.terms.items():
            for text in term if factor < 0 else ():
                index, (dividend, divisor) = Scalar({(text,): 1}), self.quotients.get(text, (ZERO, ZERO))
                parts = [(index * divisor, dividend)] if len(divisor.terms) == 1 and self.not_negative(dividend) else []
                parts += [(index, self.highest[text])] if text in self.highest else []
                for less, more in parts:
                    times, rest = Scalar({term: -factor}).over(less)
                    if not rest.terms and self.not_negative(times):
                        yield value + times * (less + -more)

    def _inlined(self, call: cst.Call, helper: Function) -> Known:
        """Returns the value of a call of a function that only assigns names and returns an expression."""
        names = [param.name.value for param in helper.params.params]
        keywords = [arg.keyword.value if arg.keyword else name for name, arg in zip(names, call.args, strict=False)]
        lines = [line.body for line in helper.body.body if isinstance(line, cst.SimpleStatementLine)]
        *before, last = [small for line in lines for small in line if not isinstance(small, cst.Expr)] or [cst.Pass()]
        if len(lines) < len(helper.body.body) or not isinstance(last, cst.Return) or last.value is None:
            return None
        if len(call.args) != len(names) or set(keywords) != set(names) or helper in self._open:
            return None
        values = {name: self.value(arg.value) for name, arg in zip(keywords, call.args, strict=True)}
        outer = self.values, self.numbers
        self.values, self.numbers = values, {name: next(self._counter) for name in names}
        self._open.append(helper)
        try:
            for small in before:
                self._assign(small)
            return self.value(last.value)
        finally:
            self.values, self.numbers = outer
            self._open.remove(helper)
