"""Writes parts of expressions: operands with the parentheses that they need, and the constant log₂ e."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.source.syntax import Source, argument, number

LOG2_E = 1.4426950408889634
_SPELLED = ("1.0 / math.log(2)", "1 / math.log(2)", "math.log2(math.e)", "1.0 / math.log(2.0)", "np.log2(np.e)")
_LOOSE = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.IfExp, cst.BooleanOperation)
_BINDING = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.Attribute)
_PRODUCTS = (cst.Multiply, cst.Divide, cst.FloorDivide, cst.Modulo)
_SUMS = (cst.Add, cst.Subtract)
_PRIMARY = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)


def text_of(source: Source, node: cst.BaseExpression) -> str:
    """The text of an expression, in parentheses where it could not stand in front of ``.`` or beside ``*``."""
    text = source.code(node)
    return text if isinstance(node, _PRIMARY) or node.lpar else f"({text})"


def factor_of(source: Source, node: cst.BaseExpression) -> str:
    """The text of an expression, in parentheses where it could not stand at the left of ``*``."""
    product = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply)
    sign = isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus)
    return source.code(node) if product or sign else text_of(source, node)


def operands_of(node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The operands of ``x @ y``, ``x / y`` and of calls such as ``ct.mma(x, y, …)``; None where a call has others."""
    if isinstance(node, cst.BinaryOperation):
        return node.left, node.right
    assert isinstance(node, cst.Call)
    left, right = argument(node, "x", 0), argument(node, "y", 1)
    return None if left is None or right is None else (left, right)


def fitting(source: Source, place: cst.CSTNode, text: str) -> cst.BaseExpression:
    """``text`` in the place of a node, in parentheses where an operator next to it would bind tighter."""
    new, above = cst.parse_expression(text), source.parent(place)
    if not isinstance(new, _LOOSE) or new.lpar or not isinstance(above, _BINDING):
        return new
    if isinstance(above, cst.BinaryOperation) and isinstance(new, cst.BinaryOperation):
        first_factor = above.left is place and isinstance(above.operator, _PRODUCTS)
        if isinstance(new.operator, _PRODUCTS) and (first_factor or isinstance(above.operator, _SUMS)):
            return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def log2_e_name(source: Source, function: str) -> str:
    """The name of log₂ e at the top of this file, or a free name for it."""
    for line, name, value in assignments(source, source.module):
        if source.parent(line) is source.module and _is_log2_e(source, value):
            return name
    return fresh_in(source, function, "LOG2_E")


def with_log2_e(source: Source, name: str) -> str:
    """The file with that constant below its imports, where it is missing."""
    if any(name == one and _is_log2_e(source, value) for _, one, value in assignments(source, source.module)):
        return source.text
    imports = [
        index
        for index, one in enumerate(source.module.body)
        if isinstance(one, cst.SimpleStatementLine)
        and all(isinstance(small, (cst.Import, cst.ImportFrom)) for small in one.body)
    ]
    line = cst.parse_statement(f"{name} = {LOG2_E!r}")
    assert isinstance(line, cst.SimpleStatementLine)
    place = imports[-1] + 1 if imports else 0
    line = line.with_changes(leading_lines=[cst.EmptyLine(indent=False)] if imports else [])
    body = [*source.module.body[:place], line, *source.module.body[place:]]
    return source.module.with_changes(body=body).code


def _is_log2_e(source: Source, value: cst.BaseExpression) -> bool:
    known = number(value)
    return (known is not None and abs(known - LOG2_E) < 1e-12) or source.code(value) in _SPELLED
