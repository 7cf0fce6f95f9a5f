"""TW309: an element's number where a tile's is meant (rule 2)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import operation, tile_functions
from tilewright.source.source_file import SourceFile, argument, text


class ElementIndex:
    about = About(
        code="TW309",
        name="element-index",
        level="error",
        title="the index of a load or store counts elements",
        why="ct.load and ct.store count in tiles of the given shape (rule 2): `bid * TILE` reaches TILE "
        "times too far, and a tile wholly outside its array is undefined behaviour. Only gather and scatter "
        "count elements.",
        fix="drop the factor: `index=(bid,)`",
        sources=("rule 2",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for function in tile_functions(file):
            for call in file.every(ast.Call, function):
                if operation(file, call) != "load":
                    continue
                index, shape = argument(call, 1, "index"), argument(call, 2, "shape")
                for one, extent in zip(elements(index), elements(shape), strict=False):
                    if self._multiplied(file, one, extent):
                        yield self.about.at(
                            file, one,
                            f"{text(one)} counts elements, but the index counts tiles of {text(extent)}",
                        )  # fmt: skip

    def _multiplied(self, file: SourceFile, index: ast.expr, extent: ast.expr) -> bool:
        value = file.value(index)
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            return False
        return not isinstance(extent, ast.Constant) and text(extent) in (text(value.left), text(value.right))


def elements(node: ast.expr | None) -> list[ast.expr]:
    """Those of a tuple; a single expression as one."""
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else [] if node is None else [node]


RULE = ElementIndex()
