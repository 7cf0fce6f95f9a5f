"""Reads and formats parts of code: operands with their parentheses, quotients, lines, and the constant log₂ e."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments_at_top, names_assigned, parameters
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Line, Source, argument, dotted, number

LOG2_E = 1.4426950408889634
_SPELLED = ("1.0 / math.log(2)", "1 / math.log(2)", "math.log2(math.e)", "1.0 / math.log(2.0)", "np.log2(np.e)")
_LOOSE = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.IfExp, cst.BooleanOperation)
_BINDING = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.Attribute, cst.Subscript)
_WEAK = (cst.BooleanOperation, cst.IfExp)
_PRODUCTS = (cst.Multiply, cst.Divide, cst.FloorDivide, cst.Modulo)
_CONDITIONAL = (cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.ListComp, cst.GeneratorExp, cst.NamedExpr)
_PRIMARY = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)


def text_of(source: Source, node: Expression) -> str:
    """Returns the text of an expression, with the parentheses that it needs before ``.`` or beside ``*``."""
    text = source.code(node)
    return text if isinstance(node, _PRIMARY) or node.lpar else f"({text})"


def imported(source: Source, name: str) -> str:
    """Returns the text by which the file refers to ``name`` of cuda.tile. Raises `NotApplicable` if it cannot, or if a
    function has another value of that name."""
    if not (text := source.spelled(name)):
        raise NotApplicable(f"{source.name} does not import {name} of cuda.tile")
    root = text.partition(".")[0]
    for function in source.tile_code.values():
        if root in names_assigned(function) or root in parameters(function):
            raise NotApplicable(f"{root} of {function.name.value} is not that of cuda.tile")
    return text


def bare(node: Expression) -> Expression:
    """Returns the expression without the parentheses around it."""
    return node.with_changes(lpar=(), rpar=()) if getattr(node, "lpar", ()) else node


def factor_of(source: Source, node: Expression) -> str:
    """Returns the text of an expression, with the parentheses that it needs at the left of ``*``."""
    match node:
        case cst.BinaryOperation(operator=cst.Multiply()) | cst.UnaryOperation(operator=cst.Minus()):
            return source.code(node)
    return text_of(source, node)


def operands_of(node: Expression) -> tuple[Expression, Expression] | None:
    """Returns the operands of ``x @ y``, ``x / y`` and calls such as ``ct.mma(x, y, …)``; None for another call."""
    if isinstance(node, cst.BinaryOperation):
        return node.left, node.right
    assert isinstance(node, cst.Call)
    left, right = argument(node, "x", 0), argument(node, "y", 1)
    return None if left is None or right is None else (left, right)


def exact_quotient(source: Source, node: Expression) -> tuple[Expression, Expression] | None:
    """Returns the operands of ``x / y`` and ``ct.truediv(x, y)``, which round to nearest; None for anything else."""
    match node:
        case cst.BinaryOperation(operator=cst.Divide()):
            return operands_of(node)
        case cst.Call(func=called, args=[_, _]) if source.tile_name(dotted(called)) == "truediv":
            return operands_of(node)
    return None


def line_around(source: Source, node: cst.CSTNode) -> Line | None:
    """Returns the statement on a line of its own that computes ``node`` once, in any case; None if there is none."""
    for above in source.parents(node):
        if isinstance(above, _CONDITIONAL):
            break
        if isinstance(above, Line):
            return above if len(above.body) == 1 else None
    return None


def fitting(source: Source, place: cst.CSTNode, text: str) -> Expression:
    """Parses ``text`` as a replacement for ``place``. Adds parentheses if the operators around ``place`` need them."""
    new, above = cst.parse_expression(text), source.parent(place)
    binding = (*_BINDING, *_WEAK) if isinstance(new, _WEAK) else _BINDING
    if not isinstance(new, _LOOSE) or new.lpar or not isinstance(above, binding):
        return new
    if isinstance(above, cst.BinaryOperation) and isinstance(new, cst.BinaryOperation):
        first_factor = above.left is place and isinstance(above.operator, _PRODUCTS)
        if isinstance(new.operator, _PRODUCTS) and (
            first_factor or isinstance(above.operator, (cst.Add, cst.Subtract))
        ):
            return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def line_of(text: str) -> Line:
    """Parses a statement that is one line."""
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement


def log2_e_names(source: Source) -> list[str]:
    """Returns the names of the constants of ``source`` that equal log₂ e."""
    return [
        name
        for _, name, value in assignments_at_top(source)
        if source.code(value) in _SPELLED or abs((number(value) or 0) - LOG2_E) < 1e-12
    ]


def log2_e_name(source: Source, function: str) -> str:
    """Returns the name of the constant log₂ e in ``source``; if there is none, a name that is not used yet."""
    return next(iter(log2_e_names(source)), None) or fresh_in(source, function, "LOG2_E")


def with_log2_e(source: Source, name: str) -> str:
    """Returns the text with the constant log₂ e defined as ``name`` below the imports, if not already defined."""
    if name in log2_e_names(source):
        return source.text
    imports = [
        index
        for index, line in enumerate(source.module.body)
        if isinstance(line, cst.SimpleStatementLine)
        and all(isinstance(statement, (cst.Import, cst.ImportFrom)) for statement in line.body)
    ]
    blank = [cst.EmptyLine(indent=False)] if imports else []
    line = cst.parse_statement(f"{name} = {LOG2_E!r}").with_changes(leading_lines=blank)
    place = imports[-1] + 1 if imports else 0
    body = [*source.module.body[:place], line, *source.module.body[place:]]
    return source.module.with_changes(body=body).code


def fused_exponent(source: Source, inside: Expression, log2_e: str) -> str:
    """Returns the text of ``(a - b) * log2_e`` as a difference of two products. Raises `NotApplicable` if ``inside`` is
    no difference."""
    match inside:
        case cst.BinaryOperation(operator=cst.Subtract(), left=left, right=right):
            return f"{factor_of(source, left)} * {log2_e} - {factor_of(source, right)} * {log2_e}"
    raise NotApplicable("exp without a subtraction: the factor cannot be fused")


def scaled_exponent(source: Source, inside: Expression, log2_e: str) -> str:
    """Returns the text of ``inside * log2_e``. If ``inside`` has a constant factor, puts log2_e beside it, so that the
    compiler multiplies the two constants."""
    match inside:
        case cst.UnaryOperation(operator=cst.Minus(), lpar=()):
            return f"{factor_of(source, inside.expression)} * -{log2_e}"
        case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
            for constant, other in ((right, left), (left, right)):
                if number(constant) is not None or (isinstance(constant, cst.Name) and constant.value.isupper()):
                    return f"{factor_of(source, other)} * ({source.code(constant)} * {log2_e})"
    return f"{factor_of(source, inside)} * {log2_e}"
