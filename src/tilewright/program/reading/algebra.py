"""Brings expressions over tensors into a normal form, so that different spellings of a function compare equal.

A form is a sum, ``("+", constant, ((factor, form), …))``; a product of powers, ``("*", ((base, exponent), …))``; a
function, ``("tanh", form)``; a reduction, ``("mean", form, axis)``; or a leaf, an expression that is compared as text.
Names are replaced by their values from the same block.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from tilewright.program.reading.flow import assigned, last_change
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.numbers import axis, number_value
from tilewright.program.reading.operations import arithmetic, operation, option
from tilewright.source.source_file import keywords

Form: TypeAlias = tuple[Any, ...]
FUNCTIONS = ("tanh", "erf", "sigmoid", "exp", "log")
POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2.0, "reciprocal": -1.0}
SOFTMAXES = ("softmax", "log_softmax", "logsumexp")
DEPTH = 30
NEAR = 2e-8
"""Two constants with a smaller relative difference are equal: people write 0.79788456 for √(2/π)."""


def number(value: float) -> Form:
    return ("+", float(value), ())


def add(*forms: Form, constant: float = 0.0) -> Form:
    """Returns the sum of forms and a constant; equal terms are merged."""
    terms: dict[Form, float] = {}
    for form in forms:
        if form[0] == "+":
            constant += form[1]
            parts = form[2]
        else:
            parts = ((1.0, form),)
        for factor, part in parts:
            terms[part] = terms.get(part, 0.0) + factor
    listed = tuple(sorted(((f, p) for p, f in terms.items() if f), key=lambda term: repr(term[1])))
    if not constant and len(listed) == 1 and listed[0][0] == 1.0:
        return listed[0][1]
    return ("+", constant, listed)


def times(*forms: Form, factor: float = 1.0) -> Form:
    """Returns the product of forms and a number; powers of one base are merged."""
    powers: dict[Form, float] = {}
    for form in forms:
        scale, parts = _factors(form)
        factor *= scale
        for base, exponent in parts:
            powers[base] = powers.get(base, 0.0) + exponent
    listed = tuple(sorted(((b, e) for b, e in powers.items() if e), key=repr))
    if not listed:
        return number(factor)
    inner = listed[0][0] if len(listed) == 1 and listed[0][1] == 1.0 else ("*", listed)
    if factor == 1.0:
        return inner
    if inner[0] == "+":
        inner = ("*", listed)
    return ("+", 0.0, ((factor, inner),)) if factor else number(0)


def _factors(form: Form) -> tuple[float, tuple[tuple[Form, float], ...]]:
    if form[0] == "*":
        return 1.0, form[1]
    if form[0] == "+" and not form[2]:
        return form[1], ()
    if form[0] == "+" and not form[1] and len(form[2]) == 1:
        factor, inner = form[2][0]
        return factor, inner[1] if inner[0] == "*" else ((inner, 1.0),)
    return 1.0, ((form, 1.0),)


def power(form: Form, exponent: float) -> Form:
    """Returns a form to a power. The power of a number is computed; the power of a product becomes a product of
    powers.
    """
    if form[0] == "+" and not form[2] and (form[1] > 0 or exponent == int(exponent)) and form[1]:
        return number(form[1] ** exponent)
    if form[0] == "*" and (exponent == int(exponent) or len(form[1]) == 1):
        return times(*(("*", ((base, inner * exponent),)) for base, inner in form[1]))
    return ("*", ((form, exponent),)) if exponent != 1 else form


def equal(a: Form, b: Form) -> bool:
    """Returns whether two forms are equal. Their constants may differ by rounding."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=NEAR)
    return bool(a == b)


class NormalForms:
    """Makes the forms of the expressions of one file, and remembers the names and statements that it followed."""

    def __init__(self, module: ReadModule) -> None:
        self.module = module
        self.followed: dict[ast.stmt, str] = {}
        self.named: dict[Form, ast.Name] = {}
        self.codes: dict[Form, ast.expr] = {}

    def of(self, node: ast.expr, at: ast.stmt, depth: int = DEPTH) -> Form:
        """Returns the form of an expression that the statement ``at`` evaluates."""
        value = _constant(self.module, node)
        if value is not None:
            return number(value)
        if depth == 0:
            return self._leaf(node, at)
        if isinstance(node, ast.Name):
            change = last_change(self.module, node.id, at)
            named = assigned(change, node.id)
            if change is not None and named is not None and not is_leaf(self.module, named):
                self.followed[change] = node.id
                form = self.of(named, change, depth - 1)
            else:
                form = self._leaf(node, at)
            self.named.setdefault(form, node)
            return form
        return self._operation(node, at, depth - 1) or self._leaf(node, at)

    def _operation(self, node: ast.expr, at: ast.stmt, depth: int) -> Form | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return times(self.of(node.operand, at, depth), factor=-1.0)
        if (parts := arithmetic(self.module, node)) is not None:
            left, right = (self.of(each, at, depth) for each in parts[1:])
            sign = parts[0]
            if sign in "+-":
                return add(left, right if sign == "+" else times(right, factor=-1.0))
            return times(left, right if sign == "*" else power(right, -1.0))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            exponent = _constant(self.module, node.right)
            return None if exponent is None else power(self.of(node.left, at, depth), float(exponent))
        name, args = operation(self.module, node)
        if name == "pow" and len(args) == 2 and (exponent := _constant(self.module, args[1])) is not None:
            return power(self.of(args[0], at, depth), float(exponent))
        if len(args) == 1 and isinstance(node, ast.Call) and not node.keywords and name in (*FUNCTIONS, *POWERS, "neg"):
            inside = self.of(args[0], at, depth)
            if name == "neg":
                return times(inside, factor=-1.0)
            return (name, inside) if name in FUNCTIONS else power(inside, POWERS[name])
        if name in SOFTMAXES and args and isinstance(node, ast.Call) and not keywords(node).get("dtype"):
            dim = axis(option(node, args, 1, "dim", "axis"))
            kept = name != "logsumexp" or _is_true(option(node, args, 2, "keepdim"))
            return (name, self.of(args[0], at, depth), dim) if dim is not None and kept else None
        return self._reduction(node, name, args, at, depth)

    def _reduction(self, node: ast.expr, name: str, args: list[ast.expr], at: ast.stmt, depth: int) -> Form | None:
        if isinstance(node, ast.Attribute) and node.attr == "values":
            node = node.value
            name, args = operation(self.module, node)
            name = "amax" if name == "max" else ""
        elif isinstance(node, ast.Subscript) and axis(node.slice) == 0:
            name, args = operation(self.module, node.value)
            node, name = node.value, "amax" if name == "max" else ""
        if name not in ("mean", "sum", "var", "amax") or not isinstance(node, ast.Call) or not args:
            return None
        dim = option(node, args, 1, "dim", "axis")
        if dim is None and len(args) == 1 and not node.keywords and name in ("mean", "sum"):
            return (name, self.of(args[0], at, depth), None)
        if isinstance(dim, (ast.Tuple, ast.List)) and len(dim.elts) == 1:
            dim = dim.elts[0]
        kept = keywords(node).get("keepdim") or keywords(node).get("keepdims") or (args[2] if len(args) == 3 else None)
        if axis(dim) is None or not isinstance(kept, ast.Constant) or kept.value is not True:
            return None
        inside = self.of(args[0], at, depth)
        if name != "var":
            return (name, inside, axis(dim))
        biased = keywords(node).get("unbiased") or keywords(node).get("correction")
        known = isinstance(biased, ast.Constant) and (biased.value is False or biased.value == 0)
        return variance(inside, axis(dim) or 0) if known else ("sample variance", inside, axis(dim))

    def _leaf(self, node: ast.expr, at: ast.stmt) -> Form:
        names = sorted({each.id for each in ast.walk(node) if isinstance(each, ast.Name)})
        changes = (last_change(self.module, name, at) for name in names)
        lines = tuple(change.lineno if change else 0 for change in changes)
        calls = any(isinstance(each, ast.Call) for each in ast.walk(node))
        once = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) if calls else (0, 0)
        form = ("leaf", self.module.code(node), lines, once)
        self.codes.setdefault(form, node)
        return form


def variance(form: Form, dim: int) -> Form:
    """Returns the form of the mean of the squared distances from the mean."""
    return ("mean", power(add(form, times(("mean", form, dim), factor=-1.0)), 2.0), dim)


def log_softmax_forms(x: Form, dim: int) -> Iterator[Form]:
    """Yields the normal forms of the ways to write the logarithm of a softmax."""
    for shift in (x, add(x, times(("amax", x, dim), factor=-1.0))):
        exponentials = ("exp", shift)
        total = ("sum", exponentials, dim)
        yield add(shift, times(("log", total), factor=-1.0))
        yield ("log", times(exponentials, power(total, -1.0)))
    yield add(x, times(("logsumexp", x, dim), factor=-1.0))
    yield ("log_softmax", x, dim)
    yield ("log", ("softmax", x, dim))


def parts_of(form: Form) -> Iterable[Form]:
    """Yields a form and all forms in it."""
    if form and isinstance(form[0], str):
        yield form
    for part in form[1:] if form and form[0] != "leaf" else ():
        if isinstance(part, tuple):
            yield from _inside(part)


def _inside(part: tuple[Any, ...]) -> Iterable[Form]:
    if part and isinstance(part[0], str):
        yield from parts_of(part)
    else:
        for each in part:
            if isinstance(each, tuple):
                yield from _inside(each)


def is_leaf(module: ReadModule, node: ast.expr) -> bool:
    """Returns whether an expression is not arithmetic. A name of such a value is not replaced."""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return False
    name, _ = operation(module, node)
    return name not in (
        *FUNCTIONS,
        *POWERS,
        *SOFTMAXES,
        "pow",
        "mean",
        "sum",
        "var",
        "amax",
        "max",
        "add",
        "sub",
        "mul",
        "div",
        "neg",
    )


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _constant(module: ReadModule, node: ast.expr) -> float | None:
    """Returns the value of an expression of literal numbers, ``math.sqrt`` and ``math.pi``; None for others."""
    if (value := number_value(node)) is not None:
        return float(value)
    if module.full(node) in ("math.pi", "numpy.pi", "torch.pi"):
        return math.pi
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inside = _constant(module, node.operand)
        return None if inside is None else -inside
    if isinstance(node, ast.Call) and module.called(node) in ("math.sqrt", "numpy.sqrt") and len(node.args) == 1:
        inside = _constant(module, node.args[0])
        return None if inside is None or inside < 0 else math.sqrt(inside)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _constant(module, node.left), _constant(module, node.right)
    if left is None or right is None:
        return None
    try:
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.Pow():
                return float(left**right)
    except (ArithmeticError, TypeError):
        pass
    return None
