"""Reads single expressions and statements of a Triton kernel for `triton_addresses`."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from tilewright.playbook.analyses.index_forms import Scalar
from tilewright.source.syntax import Expression, Source


class Numbered(cst.CSTTransformer):
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


def plus(value: Scalar) -> bool:
    return all(factor > 0 for factor in value.terms.values())


def names_in(node: cst.CSTNode) -> set[str]:
    found = {node.value} if isinstance(node, cst.Name) else set()
    return found.union(*(names_in(child) for child in node.children))


def advance(small: cst.BaseSmallStatement) -> tuple[str, Expression | None]:
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


def is_made(source: Source, value: Expression) -> bool:
    """Returns whether a value contains a call or a division. The name of such a value is shorter than its text."""
    operations = source.every(cst.BinaryOperation, value)
    divided = any(isinstance(each.operator, (cst.FloorDivide, cst.Modulo)) for each in operations)
    return divided or bool(source.every(cst.Call, value))
