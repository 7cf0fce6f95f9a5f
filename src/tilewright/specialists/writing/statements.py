"""Generates the statements of a kernel from expressions.

An expression that is used twice, or has a name in the reference, becomes a variable. The subclass for a language
defines the spelling of functions, the loads of tensors and the reductions of rows.
"""

from __future__ import annotations

import keyword
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping

from tilewright.specialists.writing.expression import REDUCTIONS, Expression, below
from tilewright.specialists.writing.forms import KernelForm

ATOM, UNARY = 10, 8
STRENGTH = {
    "*": 7, "/": 7, "+": 6, "-": 6, "&": 4, "|": 3, "<": 2, "<=": 2, ">": 2, ">=": 2, "==": 2, "!=": 2,
}  # fmt: skip
"""The precedence of each operator. Operands with a lower precedence get parentheses."""
IDENTITY = {"sum": "0.0", "max": "-{inf}", "min": "{inf}"}
"""The neutral value of each reduction."""
LONG = 60
"""The most characters of an expression that is not assigned to a variable."""


class Statements(ABC):
    """The lines of one kernel body. Each method that returns text may add lines that the text needs."""

    functions: Mapping[str, str]
    module: str
    """The short name of the language's module."""
    inf: str
    """Infinity as the language writes it."""

    def __init__(self, form: KernelForm, taken: Iterable[str]) -> None:
        self.form, self.lines, self.indent = form, list[str](), "    "
        self.bound: dict[Expression, str] = {}
        self.taken = set(taken)
        used = below(form.computation.results)
        self.uses = Counter(operand for each in used for operand in each.operands)

    @abstractmethod
    def load(self, tensor: Expression) -> str:
        """Returns the text that loads this block's part of a tensor. Floats are converted to float32."""

    @abstractmethod
    def extent(self, axis: str) -> str:
        """Returns the size of an axis."""

    @abstractmethod
    def index(self) -> str:
        """Returns the indices along the columns."""

    @abstractmethod
    def reduced(self, op: str, values: str, expression: Expression) -> str:
        """Returns the reduction of a row's values."""

    def only_inside(self, values: str, outside: str) -> str:
        """Returns the values of existing columns, and ``outside`` for columns beyond the last one."""
        return f"{self.module}.where(inside, {values}, {outside})"

    def accumulator(self, start: str) -> str:
        """Returns the initial value of a reduction's partial results."""
        return f"{self.module}.full((TILE_{self.form.columns},), {start}, {self.module}.float32)"

    def expanded(self, expression: Expression) -> tuple[str, int]:
        """Generates the operand of an inserted or removed axis.

        The axis itself needs no code if each block computes one row.
        """
        return self.value(expression.operands[0])

    def add(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def variable(self, wanted: str) -> str:
        """Returns an unused name for a variable."""
        name, number = wanted, 1
        while name in self.taken or keyword.iskeyword(name):
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name

    def assigned(self, expression: Expression, text: str, wanted: str = "") -> str:
        """Assigns the code of an expression to a variable. Later code uses the variable for this expression."""
        named = self.form.computation.graph.names.get(expression, "")
        default = DEFAULT_NAMES.get(expression.op, "value")
        while default in self.form.computation.graph.names.values():
            default = f"the_{default}"
        name = self.variable(wanted or named or default)
        self.add(f"{name} = {text}")
        self.bound[expression] = name
        return name

    def value(self, expression: Expression) -> tuple[str, int]:
        """Returns the text of an expression, and the precedence of its outermost operator."""
        if expression in self.bound:
            return self.bound[expression], ATOM
        if expression.op == "input":
            return self.assigned(expression, self.load(expression), self.named_input(str(expression.value))), ATOM
        if expression.op in ("number", "extent", "index"):
            return self._leaf(expression)
        if expression.op in ("expand", "drop"):
            return self.expanded(expression)
        text, strength = self.written(expression)
        named = expression in self.form.computation.graph.names
        if named or self.uses[expression] > 1 or (len(text) > LONG and expression not in self.form.computation.results):
            return self.assigned(expression, text), ATOM
        return text, strength

    def text(self, expression: Expression, at_least: int = 0) -> str:
        """Returns the text of an expression, in parentheses if its precedence is below ``at_least``."""
        text, strength = self.value(expression)
        return text if strength >= at_least else f"({text})"

    def named_input(self, name: str) -> str:
        return name

    def _leaf(self, expression: Expression) -> tuple[str, int]:
        if expression.op == "extent":
            return self.extent(str(expression.value)), ATOM
        if expression.op == "index":
            return self.index(), ATOM
        number = float(expression.value or 0)
        if math.isinf(number):
            return f"{'-' if number < 0 else ''}{self.inf}", UNARY if number < 0 else ATOM
        return repr(number), UNARY if number < 0 else ATOM

    def written(self, expression: Expression) -> tuple[str, int]:
        """Returns the text of an operation on other expressions, and the precedence of its outermost operator."""
        op, operands = expression.op, expression.operands
        if op in REDUCTIONS:
            return self.reduced(op, self.inside(op, operands[0]), expression), ATOM
        if op == "neg":
            return f"-{self.text(operands[0], UNARY)}", UNARY
        if op == "not":
            return f"~{self.text(operands[0], UNARY)}", UNARY
        if op in STRENGTH:
            own = STRENGTH[op]
            left = self.text(operands[0], own + (own == 2))
            return f"{left} {op} {self.text(operands[1], own + 1)}", own
        return self.functions[op].format(*(self.text(each) for each in operands)), ATOM

    def stored(self, value: Expression, name: str) -> str:
        """Returns the text of an output's value, as an operand of any operator. A long text becomes a variable."""
        text, strength = self.value(value)
        if len(text) > LONG:
            return self.assigned(value, text, name)
        return text if strength == ATOM else f"({text})"

    def finished(self) -> str:
        """Returns the lines, without unused indices and masks."""
        kept: list[str] = []
        for line in reversed(self.lines):
            name = line.split(" = ")[0].strip()
            if name in ("rows", "columns", "inside") and not _read_next(name, kept[::-1]):
                continue
            kept.append(line)
        return "\n".join(kept[::-1]) + "\n"

    def inside(self, op: str, values: Expression) -> str:
        """Returns the values to reduce. Values beyond the last column are neutral. Loads return 0 there."""
        if op == "sum" and self._zero_beyond(values):
            return self.text(values)
        return self.only_inside(self.text(values), IDENTITY[op].format(inf=self.inf))

    def _zero_beyond(self, values: Expression) -> bool:
        """Returns whether values are 0 beyond the last column, because they are sums and products of loaded values."""
        if values.op == "input":
            return self.form.varies(values)
        return values.op in ("+", "-", "*", "neg", "abs") and all(map(self._zero_beyond, values.operands))


DEFAULT_NAMES = {"sum": "total", "max": "largest", "min": "least", "exp": "powers", "erf": "erf", "tanh": "tanh"}
"""The name of the variable for the result of each operation, if the reference gives no name."""


def _read_next(name: str, lines: list[str]) -> bool:
    """Returns whether a line reads a variable before another line assigns it again."""
    for line in lines:
        target, _, text = line.partition(" = ")
        if re.search(rf"\b{name}\b", text if target.strip() == name else line):
            return True
        if target.strip() == name:
            return False
    return False


# Long rows ----------------------------------------------------------------------------------------


def levels(form: KernelForm) -> list[tuple[Expression, ...]]:
    """Returns the reductions in levels, in the order of computation. The reductions of a level share a loop."""
    level: dict[Expression, int] = {}
    for each in below(form.computation.results):
        under = max((level[operand] for operand in each.operands), default=0)
        level[each] = under + (each.op in REDUCTIONS)
    last = max(level.values())
    found = [
        tuple(each for each in level if each.op in REDUCTIONS and level[each] == number)
        for number in range(1, last + 1)
    ]
    return [each for each in found if each]


def of_the_row(form: KernelForm, wanted: Iterable[Expression], bound: Iterable[Expression]) -> list[Expression]:
    """Returns the expressions that ``wanted`` needs and that have one value for the row. They are computed before the
    loop."""
    known, found = set(bound), list[Expression]()
    open_, seen = list(wanted), set[Expression]()
    while open_:
        each = open_.pop()
        if each in seen or each in known or each.op in ("number", "extent", "index"):
            continue
        seen.add(each)
        if form.varies(each) or each.op in ("expand", "drop"):
            open_ += each.operands
        else:
            found.append(each)
    return found[::-1]
