"""TW305: a block swizzle without the clamp of its last group (X-19, Part 7 check 10)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import tile_functions
from tilewright.source.source_file import Named, SourceFile, names, own, text


class Swizzle:
    about = About(
        code="TW305",
        name="swizzle-without-clamp",
        level="error",
        title="the last group of the swizzle is not clamped",
        why="Where the number of tile rows is no multiple of the group, tiles are never computed and others "
        "lie outside: of 10×4 tiles in groups of 8 six are missing, of 4×4 eight (X-19).",
        fix="`group_m = min(num_m - first_m, GROUP_M)`, and use group_m for both the remainder and the quotient",
        sources=("X-19", "playbook I"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for function in tile_functions(file):
            yield from self._in(file, function)

    def _in(self, file: SourceFile, function: Named) -> Iterator[Finding]:
        """group = bid // (G·n); first = group·G; row = first + … % G; column = … // G, with the same G."""
        assigned = {
            node.targets[0].id: node.value
            for node in own(function, ast.Assign)
            if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        }
        for first, value in assigned.items():
            for height in _factors(value):
                if not self._groups(assigned, value, height):
                    continue
                for name, row in assigned.items():
                    if name == first or not isinstance(row, ast.BinOp) or not isinstance(row.op, ast.Add):
                        continue
                    if first in names(row) and _remainder_by(row, height):
                        yield self.about.at(
                            file, row,
                            f"{name} takes the remainder by {height}, also in the last group, which may be lower",
                        )  # fmt: skip

    def _groups(self, assigned: dict[str, ast.expr], value: ast.expr, height: str) -> bool:
        """Whether ``value`` is the first row of a group: the quotient by a group's tiles, times its height."""
        group = [name for name in names(value) if name != height and name in assigned]
        for name in group:
            quotient = assigned[name]
            if isinstance(quotient, ast.BinOp) and isinstance(quotient.op, ast.FloorDiv):
                size = quotient.right
                if isinstance(size, ast.Name) and size.id in assigned:
                    size = assigned[size.id]
                if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult) and height in names(size):
                    return True
        return False


def _factors(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for side in (value.left, value.right):
            if isinstance(side, (ast.Name, ast.Constant)):
                yield text(side)


def _remainder_by(value: ast.expr, height: str) -> bool:
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and text(node.right) == height
        for node in ast.walk(value)
    )


RULE = Swizzle()
