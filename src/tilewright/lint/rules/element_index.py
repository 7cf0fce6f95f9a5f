"""The index of a load or store counts elements.

In cuda-tile 1.7 ct.load and ct.store count in tiles of the given shape: `bid * TILE` reaches TILE times too far, and a
tile wholly outside its array is undefined behaviour. Only gather and scatter count elements.

Fix: drop the factor: `index=(bid,)`.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import extents, tile_calls
from tilewright.source.source_file import SourceFile, argument, text


class ElementIndex(Rule):
    code = "TW309"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for _, call in tile_calls(file, "load"):
            pairs = zip(extents(argument(call, 1, "index")), extents(argument(call, 2, "shape")), strict=False)
            for index, extent in pairs:
                value = file.value(index)
                multiplied = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)
                if not multiplied or not isinstance(value, ast.BinOp) or isinstance(extent, ast.Constant):
                    continue
                if text(extent) in (text(value.left), text(value.right)):
                    message = f"{text(index)} counts elements, but the index counts tiles of {text(extent)}"
                    yield self.at(file, index, message)


RULE = ElementIndex()
