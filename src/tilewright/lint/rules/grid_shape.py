"""A grid is a tuple of one to three integers.

Anything else raises at the launch: 'Grid must be a tuple', 'Grid dimensions must be at most 3'. A true division makes a
float, which raises as well.

Fix: write `(blocks,)`, with // or ct.cdiv for quotients.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import passed
from tilewright.source.source_file import SourceFile


class GridShape(Rule):
    code = "TW402"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for grid in passed(file, "grid"):
            if wrong := _wrong(grid):
                yield self.at(file, grid, wrong)


def _wrong(value: ast.AST) -> str:
    if isinstance(value, (ast.List, ast.Set)):
        return "a list is passed as the grid; it must be a tuple"
    quotient = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.FloorDiv, ast.Div))  # sums may be of tuples
    if quotient or isinstance(value, ast.Constant):
        return "a number is passed as the grid; it must be a tuple, such as (blocks,)"
    if isinstance(value, ast.Tuple) and not any(isinstance(element, ast.Starred) for element in value.elts):
        if not 1 <= len(value.elts) <= 3:
            return f"a grid of {len(value.elts)} numbers; one to three are possible"
        if any(isinstance(element, ast.BinOp) and isinstance(element.op, ast.Div) for element in value.elts):
            return "a true division makes a float of this grid"
    return ""


RULE = GridShape()
