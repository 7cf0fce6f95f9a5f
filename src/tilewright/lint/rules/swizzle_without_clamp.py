"""The last group of the swizzle is not clamped.

Where the number of tile rows is no multiple of the group, tiles are never computed and others lie outside: of 10×4
tiles in groups of 8 six are missing, of 4×4 eight.

Fix: `group_m = min(num_m - first_m, GROUP_M)`, and use group_m for both the remainder and the quotient.

Sources: Triton's tutorial on matrix multiplication, which clamps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import tile_functions
from tilewright.source.source_file import Named, SourceFile, names, own, text


class SwizzleWithoutClamp(Rule):
    code = "TW305"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for function in tile_functions(file):
            yield from self._in(file, function)

    def _in(self, file: SourceFile, function: Named) -> Iterator[LintFinding]:
        """group = bid // (G·n); first = group·G; row = first + … % G; column = … // G, with the same G."""
        assigned = {
            node.targets[0].id: node.value
            for node in own(function, ast.Assign)
            if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        }
        for first, value in assigned.items():
            for height in (height for height in _factors(value) if _groups(assigned, value, height)):
                for name, row in assigned.items():
                    is_sum = isinstance(row, ast.BinOp) and isinstance(row.op, ast.Add)
                    if name != first and is_sum and first in names(row) and _remainder_by(row, height):
                        message = f"{name} takes the remainder by {height}, also in the last group, which may be lower"
                        yield self.at(file, row, message)


def _groups(assigned: dict[str, ast.expr], value: ast.expr, height: str) -> bool:
    """Whether ``value`` is the first row of a group: the quotient by a group's tiles, times its height."""
    for name in names(value) - {height}:
        quotient = assigned.get(name)
        if isinstance(quotient, ast.BinOp) and isinstance(quotient.op, ast.FloorDiv):
            size = quotient.right
            if isinstance(size, ast.Name):
                size = assigned.get(size.id, size)
            if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult) and height in names(size):
                return True
    return False


def _factors(value: ast.expr) -> list[str]:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return []
    return [text(side) for side in (value.left, value.right) if isinstance(side, (ast.Name, ast.Constant))]


def _remainder_by(value: ast.expr, height: str) -> bool:
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and text(node.right) == height
        for node in ast.walk(value)
    )


RULE = SwizzleWithoutClamp()
