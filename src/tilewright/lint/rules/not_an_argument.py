"""A launch cannot take this argument.

A launch takes arrays, lists of arrays and numbers. None and strings raise TypeError there, in cuda-tile 1.7 too.

Fix: pass a tensor of one element and a constant that says whether it counts; a number instead of a string.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import passed
from tilewright.source.source_file import SourceFile, elements


class NotAnArgument(Rule):
    code = "TW401"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for arguments in passed(file, "arguments"):
            for wrong in map(_wrong, elements(arguments)):
                if wrong is not None:
                    what = "None" if wrong.value is None else f"the string {wrong.value!r}"
                    yield self.at(file, wrong, f"{what} is passed to a kernel")


def _wrong(node: ast.expr) -> ast.Constant | None:
    if isinstance(node, ast.IfExp):
        return _wrong(node.body) or _wrong(node.orelse)
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return node
    return None


RULE = NotAnArgument()
