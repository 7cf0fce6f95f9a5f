"""Gives names in a piece of code other names, but not attributes and keywords of the same spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Returns ``node`` with new names. ``names`` maps old names to new ones; other names stay."""
    new = node.visit(NewNames(names)) if names else node
    assert isinstance(new, type(node))
    return new


class NewNames(cst.CSTTransformer):
    """Replaces names as `renamed` does, in what is visited with it."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self.names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return updated_node.with_changes(value=self.names.get(original_node.value, original_node.value))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)
