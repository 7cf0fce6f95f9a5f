"""TW402: a grid that is no tuple of one to three numbers (rule 11)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import launches, searches
from tilewright.source.source_file import SourceFile, returned


class GridShape:
    about = About(
        code="TW402",
        name="grid-shape",
        level="error",
        title="a grid is a tuple of one to three integers",
        why="Anything else raises at the launch: 'Grid must be a tuple', 'Grid dimensions must be at most "
        "3' (rule 11). A true division makes a float, which raises as well.",
        fix="write `(blocks,)`, with // or ct.cdiv for quotients",
        sources=("rule 11",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        grids = [launch.grid for launch in launches(file)]
        for search in searches(file):
            function = file.function(search.grid_fn)
            grids += returned(function) if function is not None else ()
        seen = set()
        for grid in grids:
            for value in file.values(grid) if grid is not None else ():
                wrong = _wrong(value)
                if wrong is not None and value not in seen:
                    seen.add(value)
                    yield self.about.at(file, value, wrong)


def _wrong(value: ast.AST) -> str | None:
    if isinstance(value, (ast.List, ast.Set)):
        return "a list is passed as the grid; it must be a tuple"
    if isinstance(value, (ast.Constant, ast.BinOp)) and not _makes_a_tuple(value):
        return "a number is passed as the grid; it must be a tuple, such as (blocks,)"
    if isinstance(value, ast.Tuple) and not any(isinstance(one, ast.Starred) for one in value.elts):
        if not 1 <= len(value.elts) <= 3:
            return f"a grid of {len(value.elts)} numbers; one to three are possible"
        if any(isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div) for one in value.elts):
            return "a true division makes a float of this grid"
    return None


def _makes_a_tuple(value: ast.AST) -> bool:
    """Sums of tuples, and whatever is not arithmetic."""
    return isinstance(value, ast.BinOp) and not isinstance(value.op, (ast.FloorDiv, ast.Div))


RULE = GridShape()
